package redisexec

import (
	"bufio"
	"cmp"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/lockerr"
)

// wire is the open connection of a pipeline. The writer of the pipeline counts a command as in flight before it writes it. The
// reader finishes the commands in that order, as the replies come, and all that are left when w fails.
type wire struct {
	net.Conn
	pipe   *pipeline
	opened time.Time
	close  func() // as often as one likes

	// The mutex of the pipeline guards these.
	written  []*call   // commands that the reader has not taken yet
	inFlight int       // commands without an answer
	idle     time.Time // since when there is none
	err      error     // why it is unusable

	answered int // since the last read: the reader's
}

// newCredentials is the greatest age of a connection whose credentials change.
const newCredentials = 5 * time.Minute

// isOld reports whether w has reached an age that the application has set. mu is held.
func (w *wire) isOld(now time.Time) bool {
	o, age := w.pipe.options, now.Sub(w.opened)
	return o.ConnMaxLifetime > 0 && age >= o.ConnMaxLifetime ||
		o.StreamingCredentialsProvider != nil && age >= newCredentials ||
		o.ConnMaxIdleTime > 0 && w.inFlight == 0 && now.Sub(w.idle) >= o.ConnMaxIdleTime
}

// send writes a batch, whose bytes these are. If that fails, the reader finishes it. false: w is unusable already, and nothing
// was sent.
func (w *wire) send(batch []*call, bytes []byte) bool {
	w.pipe.mu.Lock()
	if w.err != nil {
		w.pipe.mu.Unlock()
		return false
	}
	for _, cmd := range batch {
		cmd.asked.Store(true)
	}
	w.written = append(w.written, batch...)
	if w.inFlight += len(batch); w.inFlight == len(batch) {
		w.date()
	}
	w.pipe.mu.Unlock()
	if d := w.pipe.options.WriteTimeout; d > 0 {
		_ = w.SetWriteDeadline(time.Now().Add(d))
	}
	if _, err := w.Write(bytes); err != nil {
		w.fail(err)
	}
	return true
}

// date sets when the read of an answer ends: w may be silent for that long, but if nothing is in flight, for ever. mu is held.
func (w *wire) date() {
	switch d := w.pipe.options.ReadTimeout; {
	case d == -2: // it has no deadlines
	case d < 0 || w.inFlight == 0:
		_ = w.SetReadDeadline(time.Time{})
	default:
		_ = w.SetReadDeadline(time.Now().Add(d))
	}
}

// Read reads for the reader, which has finished all commands whose answers it has.
func (w *wire) Read(b []byte) (int, error) {
	w.pipe.mu.Lock()
	w.inFlight -= w.answered
	w.answered = 0
	if w.inFlight == 0 {
		w.idle = time.Now()
		w.pipe.settled.Broadcast()
	}
	w.date()
	w.pipe.mu.Unlock()
	return w.Conn.Read(b)
}

// read finishes commands, in the order in which they were written, until w fails.
func (w *wire) read() {
	var taken []*call // from written
	next, from := 0, bufio.NewReaderSize(w, 1<<15)
	for {
		value, err := readReply(from)
		if err != nil && err != redis.Nil {
			if _, refused := err.(replyError); !refused {
				w.fail(err)
				break
			}
		}
		if next == len(taken) {
			clear(taken)
			w.pipe.mu.Lock()
			taken, w.written = w.written, taken[:0]
			w.pipe.mu.Unlock()
			if next = 0; len(taken) == 0 {
				w.fail(fmt.Errorf("%w: nothing was asked", errNoReply))
				break
			}
		}
		w.answered++
		taken[next].finish(value, err)
		next++
	}
	w.pipe.mu.Lock()
	rest, err := append(taken[next:], w.written...), w.err
	w.inFlight, w.written = 0, nil
	w.pipe.settled.Broadcast()
	w.pipe.mu.Unlock()
	for _, cmd := range rest {
		cmd.finish(nil, err)
	}
}

// errGivenUp is the end of commands whose pipeline was closed before their answers came.
var errGivenUp = fmt.Errorf("%w: its connection was given up", lockerr.ErrNoAnswer)

// fail makes w unusable.
func (w *wire) fail(err error) {
	if w.pipe.life.Err() != nil {
		err = errGivenUp
	}
	w.pipe.mu.Lock()
	w.err = cmp.Or(w.err, err)
	w.pipe.mu.Unlock()
	w.close()
}

// appendCommand appends a command to b in the protocol of Redis. Its words are those that the scripts have.
func appendCommand(b []byte, words []any) []byte {
	b = appendLength(b, '*', len(words))
	var room [20]byte
	for _, word := range words {
		switch word := word.(type) {
		case string:
			b = append(append(appendLength(b, '$', len(word)), word...), "\r\n"...)
		case *string:
			b = append(append(appendLength(b, '$', len(*word)), *word...), "\r\n"...)
		case int:
			b = appendText(b, strconv.AppendInt(room[:0], int64(word), 10))
		case int64:
			b = appendText(b, strconv.AppendInt(room[:0], word, 10))
		default:
			b = appendText(b, fmt.Append(room[:0], word))
		}
	}
	return b
}

func appendText(b, text []byte) []byte {
	return append(append(appendLength(b, '$', len(text)), text...), "\r\n"...)
}

func appendLength(b []byte, kind byte, n int) []byte {
	return append(strconv.AppendInt(append(b, kind), int64(n), 10), "\r\n"...)
}
