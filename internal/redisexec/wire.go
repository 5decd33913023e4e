package redisexec

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/goroutine"
	"github.com/relock-go/relock/internal/lockerr"
)

// wire is the open connection of a pipeline. Each command is counted as in flight before it is written. The reader finishes the
// commands in that order, as the replies come, and all that are left when the wire fails.
//
//	nobody reads --a batch is written--> a goroutine reads --all is answered--> nobody reads
//	nobody reads --a lone command--> its caller reads --answered--> nobody reads, or a goroutine if there are more
//	its caller reads --it stops waiting--> a goroutine reads
//	any --an error--> failed
//
// While nobody reads, nothing is in flight. Before the next command is written, w is examined: the server may have closed it.
//
// What can come late: the end of the call of a lone command that was answered (interrupt).
type wire struct {
	net.Conn
	pipe   *pipeline
	opened time.Time
	close  func() // as often as one likes
	peek   peek

	// The mutex of the pipeline guards these.
	written  []*call   // commands that the reader has not taken yet
	inFlight int       // commands without an answer
	idle     time.Time // since when there is none
	err      error     // why it is unusable
	reading  bool      // there is a reader
	alone    *call     // the command whose caller is the reader; nil: none
	asking   bool      // alone is being written

	// These are the reader's.
	taken   []*call // from written; those before next are finished
	next    int
	replies []byte // that have come; those before parsed are finished
	parsed  int
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

// send writes a batch. If that fails, the reader finishes it. false: w is unusable already, and nothing was sent.
func (w *wire) send(batch []*call) bool {
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
	if !w.reading {
		w.reading = true
		w.pipe.goroutines.Go(w.read)
	}
	w.pipe.mu.Unlock()
	switch d := w.pipe.options.WriteTimeout; {
	case d == -2: // it has no deadlines
	case d <= 0:
		_ = w.SetWriteDeadline(time.Time{})
	default:
		_ = w.SetWriteDeadline(time.Now().Add(d))
	}
	for len(batch) > 0 {
		batch = w.pipe.encode(batch)
		if err := w.write(w.pipe.bytes); err != nil {
			w.fail(err)
			break
		}
	}
	return true
}

// A write that has fullWrite bytes gets no further command. So the buffer stays small, however many commands come together.
const fullWrite = 1 << 15

// encode makes p.bytes the next bytes of a batch, and returns the commands that are left. The writer calls it.
func (p *pipeline) encode(batch []*call) []*call {
	if p.bytes = p.bytes[:0]; cap(p.bytes) > 2*fullWrite { // after a large command
		p.bytes = nil
	}
	for len(batch) > 0 && len(p.bytes) < fullWrite {
		p.bytes, batch = appendCommand(p.bytes, batch[0].Cmd.Args()), batch[1:]
	}
	return batch
}

// write writes to the connection, which may be the application's.
func (w *wire) write(bytes []byte) (err error) {
	defer goroutine.Recover(&err)
	n, err := w.Conn.Write(bytes)
	if err == nil && n < len(bytes) {
		err = io.ErrShortWrite
	}
	return err
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

// read finishes commands, in the order in which they were written, until all are, or w fails.
func (w *wire) read() {
	for answered := 0; ; {
		value, err := w.parse()
		if err == errPart {
			if w.rest(answered) {
				return
			}
			answered = 0
			if err = w.receive(); err == nil {
				continue
			}
		}
		if err != nil && err != redis.Nil && !Replied(err) {
			w.end(err)
			return
		}
		if w.next == len(w.taken) {
			clear(w.taken)
			w.pipe.mu.Lock()
			w.taken, w.written, w.next = w.written, w.taken[:0], 0
			w.pipe.mu.Unlock()
			if len(w.taken) == 0 {
				w.end(errUnasked)
				return
			}
		}
		answered++
		w.taken[w.next].finish(value, err)
		w.next++
	}
}

// errUnasked is the end of a connection on which there is more than was asked for, as its end.
var errUnasked = fmt.Errorf("%w: nothing was asked", errNoReply)

// parse returns the next reply. errPart: it has not come yet.
func (w *wire) parse() (value any, err error) {
	value, n, err := parseReply(w.replies[w.parsed:])
	w.parsed += n
	return value, err
}

// receive waits for more of the replies.
func (w *wire) receive() (err error) {
	defer goroutine.Recover(&err) // as in write
	left := copy(w.replies, w.replies[w.parsed:])
	w.replies, w.parsed = slices.Grow(w.replies[:left], max(1, leastRead-left)), 0
	n, err := w.Conn.Read(w.replies[left:cap(w.replies)])
	w.replies = w.replies[:left+n]
	if n > 0 {
		return nil
	}
	return err
}

// leastRead is the room for replies: a hundred commands have about half of it.
const leastRead = 1 << 14

// rest records so many answers, and reports whether the reader ends, because nothing else is in flight.
func (w *wire) rest(answered int) bool {
	w.pipe.mu.Lock()
	defer w.pipe.mu.Unlock()
	if w.inFlight -= answered; w.isDone() {
		return true
	}
	w.date()
	return false
}

// isDone ends the reader if nothing is in flight. mu is held.
func (w *wire) isDone() bool {
	if w.inFlight > 0 {
		return false
	}
	if w.parsed < len(w.replies) {
		w.giveUp()
	}
	w.taken, w.written, w.next = emptied(w.taken), emptied(w.written), 0 // calls have their contexts
	w.reading, w.idle = false, time.Now()
	w.pipe.settled.Broadcast()
	return true
}

// isUsable reports whether the next command can be written. mu is held, and if nothing is in flight, the caller writes.
func (w *wire) isUsable() bool {
	if w.err == nil && w.inFlight == 0 && w.peek.finds() {
		w.giveUp()
	}
	return w.err == nil
}

// giveUp makes w, on which nothing is in flight, unusable. mu is held.
func (w *wire) giveUp() {
	w.err = cmp.Or(w.err, errUnasked)
	w.close()
}

// end finishes all commands that are left, after err. It is the reader's last step.
func (w *wire) end(err error) {
	w.fail(err)
	w.pipe.mu.Lock()
	rest := append(w.taken[w.next:], w.written...)
	w.inFlight, w.written, w.taken, w.next, err = 0, nil, nil, 0, w.err
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

// appendCommand appends a command to b in the protocol of Redis. It knows the words that the scripts use.
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
