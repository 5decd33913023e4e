package redisexec

import (
	"context"
	"os"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// A lone command is written by the goroutine of its caller, which also reads the answer: to wake the goroutines of the pipeline,
// and to be woken by them, costs a third more. Meanwhile a goroutine writes the commands that come.
//
// Invariants:
//   - It keeps its place: commands that are submitted later are written later.
//   - The end of its call, or of the patience with it, interrupts the read, so its caller goes on at once. A goroutine takes over
//     the read, and the answer counts as the answer to any other copy.
//   - An interrupted write ends the connection. With nothing in flight there is room for it, so it hangs only in a dialer's tunnel.

// reserve returns the wire of p for one lone command, whose caller waits until end. nil: it is not alone, end has passed, or there
// is no wire that takes a deadline, and loses it when the pipeline writes and reads again.
func (p *pipeline) reserve(end time.Time) *wire {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, now := p.wire, time.Now()
	if p.closed || p.writing || p.options.Limiter != nil || p.options.ReadTimeout == -2 || p.options.WriteTimeout == -2 ||
		w == nil || w.reading || w.isOld(now) || !now.Before(end) || w.SetDeadline(end) != nil || !w.isUsable() {
		return nil
	}
	p.writing, w.reading = true, true
	return w
}

// ask sends cmd, for which w was reserved, and waits for the answer. The end that was set ends the wait, and so does the end
// of ctx, if it is watched: then the answer is pending.
func (w *wire) ask(ctx context.Context, watch bool, cmd *call) answer {
	w.begin(cmd)
	if watch {
		defer context.AfterFunc(ctx, func() { w.interrupt(cmd) })()
	}
	p := w.pipe
	p.encode([]*call{cmd})
	cmd.asked.Store(true) // whatever the write says: a tunnel may have sent what it reports as a failure
	err := w.write(p.bytes)
	if err != nil {
		w.fail(err) // before anything is written behind a part of cmd
	}
	w.goOn()
	var value any
	if err == nil {
		if value, err = w.await(); isTimeout(err) {
			return w.leave(cmd)
		}
	}
	if err != nil && err != redis.Nil && !Replied(err) {
		w.end(err)
		return answerTo(cmd, cmd.err)
	}
	w.done()
	cmd.SetVal(value)
	return answerTo(cmd, err)
}

// begin puts cmd in flight.
func (w *wire) begin(cmd *call) {
	w.pipe.mu.Lock()
	defer w.pipe.mu.Unlock()
	w.alone, w.asking, w.inFlight, w.written = cmd, true, 1, append(w.written, cmd)
}

// goOn passes the part of the writer on, if there are commands.
func (w *wire) goOn() {
	p := w.pipe
	p.mu.Lock()
	defer p.mu.Unlock()
	w.asking = false
	if p.writing = len(p.queued) > 0; p.writing {
		p.goroutines.Go(p.write)
	} else {
		p.settled.Broadcast()
	}
}

// await waits for the next reply.
func (w *wire) await() (value any, err error) {
	for {
		if value, err = w.parse(); err != errPart {
			return value, err
		}
		if err = w.receive(); err != nil {
			return nil, err
		}
	}
}

// interrupt ends the wait for cmd, if its caller still waits.
func (w *wire) interrupt(cmd *call) {
	w.pipe.mu.Lock()
	defer w.pipe.mu.Unlock()
	switch {
	case w.alone != cmd:
	case w.asking:
		_ = w.SetDeadline(longAgo)
	default: // others may be written now
		_ = w.SetReadDeadline(longAgo)
	}
}

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// leave has a goroutine read the answer to cmd, and all that come after.
func (w *wire) leave(cmd *call) answer {
	w.pipe.mu.Lock()
	defer w.pipe.mu.Unlock()
	cmd.done = make(chan struct{})
	w.alone = nil // mutant: answer-of-another
	w.pipe.goroutines.Go(w.read)
	return answer{err: os.ErrDeadlineExceeded, pending: cmd.answer}
}

// done records that the lone command was answered. A goroutine reads the answers to the commands that were sent meanwhile.
func (w *wire) done() {
	w.pipe.mu.Lock()
	defer w.pipe.mu.Unlock()
	w.alone = nil
	w.written = slices.Delete(w.written, 0, 1)
	if w.inFlight--; !w.isDone() {
		w.pipe.goroutines.Go(w.read)
	}
}
