package redisexec

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/lockerr"
)

// A command that comes alone goes on a quick connection, if there is one: the goroutine of the caller writes the
// command and reads the answer. To wake the goroutines of a pipeline, and to be woken by them, costs a third more.
//
//	none --opened in the background--> ready
//	ready --a command--> busy: other commands go by a lane
//	busy --answered within half a patience--> ready
//	busy --answered later, or an error of the network--> none
//	busy --its patience is over, or its call has ended--> left; none
//	left --answered, or too late--> closed
//
// Invariants:
//   - The end of a call, or of the patience with the copy, interrupts the read, so the caller goes on at once. go-redis is
//     then done with the connection, but it stays open: a goroutine waits for the answer, which counts as that of any
//     other copy.
//   - When a call has ended, later commands for the same keys wait for the answer to its copy (late): they would
//     overtake it.
//   - Only openQuick dials. If go-redis gives the connection up, the next command goes by a lane, and waits for no dial.
type quick struct {
	rdb  *redis.Client
	own  *dialed
	conn atomic.Pointer[conn]

	// line is held while a command is under way.
	line sync.Mutex
}

// conn is a connection whose reads and writes can be interrupted. Its Close does nothing: quick.close closes it, after
// the answer to an interrupted command has come.
type conn struct {
	net.Conn

	ending func() // end, made once

	// Of the last command; they are of whoever has sent it.
	watched func() bool // ends the watch of the context of its call; nil: there is none
	written bool        // a part of it, at least
	read    []byte      // of the answer

	mu          sync.Mutex
	interrupted bool // for go-redis, for good
	left        bool // go-redis is done with it
}

// end ends what go-redis reads or writes, now and from now on.
func (c *conn) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.interrupted = true; !c.left {
		_ = c.Conn.SetDeadline(longAgo)
	}
}

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// date sets a deadline, unless c is interrupted: go-redis sets one before each read and write.
func (c *conn) date(set func(time.Time) error, t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.interrupted {
		return set(longAgo)
	}
	return set(t)
}

func (c *conn) SetDeadline(t time.Time) error      { return c.date(c.Conn.SetDeadline, t) }
func (c *conn) SetWriteDeadline(t time.Time) error { return c.date(c.Conn.SetWriteDeadline, t) }
func (c *conn) Close() error                       { return nil }

func (c *conn) SetReadDeadline(t time.Time) error { return c.date(c.Conn.SetReadDeadline, t) }

func (c *conn) Write(b []byte) (int, error) {
	c.read = c.read[:0]
	n, err := c.Conn.Write(b)
	c.written = c.written || n > 0
	return n, err
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read = append(c.read, b[:n]...)
	return n, err
}

// begin begins a command of a call, and watches ctx if the call may end before the deadline of the command.
func (c *conn) begin(ctx context.Context, watch bool) {
	if c.written = false; watch {
		c.watched = context.AfterFunc(ctx, c.ending)
	}
}

// done ends the command, and reports whether go-redis may go on using c.
func (c *conn) done() bool {
	interrupted := c.watched != nil && !c.watched()
	c.watched = nil
	return !interrupted
}

// answer waits for what is left of the answer to the last command, until ctx ends. go-redis must not use c any more.
func (c *conn) answer(ctx context.Context) answer {
	c.mu.Lock()
	c.left = true
	_ = c.Conn.SetDeadline(time.Time{})
	c.mu.Unlock()
	defer context.AfterFunc(ctx, func() { _ = c.Conn.SetDeadline(longAgo) })()
	value, err := readReply(bufio.NewReader(io.MultiReader(bytes.NewReader(c.read), c.Conn)))
	return answer{value: value, err: noNil(err)}
}

// visible is a conn on which go-redis can check whether the other end has closed it.
type visible struct {
	*conn
	raw syscall.RawConn
}

func (v visible) SyscallConn() (syscall.RawConn, error) { return v.raw, nil }

var errOneConnection = errors.New("this client has one connection, which is gone")

// newQuick returns a quick connection to node that is not dialed yet.
func (x *Executor) newQuick(node *redis.Client) *quick {
	o := ownOptions(node.Options(), node.Options().PoolSize, x.readTimeout(node)) // of the size, see openOwnLane
	o.ContextTimeoutEnabled = true
	q := &quick{own: new(dialed)}
	dial := q.own.dialer(o.Dialer)
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if q.conn.Load() != nil {
			return nil, errOneConnection
		}
		inner, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: inner}
		c.ending = c.end
		q.conn.Store(c)
		if s, is := inner.(syscall.Conn); is {
			if raw, err := s.SyscallConn(); err == nil {
				return visible{c, raw}, nil
			}
		}
		return c, nil
	}
	q.rdb = redis.NewClient(o)
	return q
}

func (q *quick) close() {
	q.own.close()
	_ = q.rdb.Close()
}

// quickPause is how long no quick connection is opened after one was, or was tried to be.
const quickPause = time.Second

// openQuick opens the quick connection of g in the background. It does so only where there is hope: an answer has come by
// the current lane, and quickly. Behind Sentinel there is none: go-redis notifies the application's connections of a
// failover, but would not notify this one.
func (g *engine) openQuick() {
	x, l := g.exec, g.lane.Load()
	if x.readTimeout(g.node) < 0 || g.node.Options().Addr == behindSentinel ||
		l.suspect.Load() || l.answers.Load() == 0 || time.Duration(l.took.Load()) > x.Patience/2 {
		return
	}
	// One of several calls at the same time does it.
	last, now := g.opened.Load(), time.Now().UnixNano()
	if last != 0 && now-last < int64(quickPause) || !g.opened.CompareAndSwap(last, now) {
		return
	}
	x.aside(func() {
		ctx, cancel := context.WithTimeout(x.life, x.Patience)
		defer cancel()
		q := x.newQuick(g.node)
		err := q.rdb.Process(ctx, &call{Cmd: *redis.NewCmd(ctx, "ping")})
		x.mu.Lock()
		ready := (err == nil || Replied(err)) && x.engines[g.node] == g && g.quick.CompareAndSwap(nil, q)
		x.mu.Unlock()
		if !ready {
			q.close()
		}
	})
}

// sendQuickly sends a first copy, in full if the server needs that, on the quick connection, and reports whether it did:
// there may be none, another command may be under way, or one may be given up for the same keys. Renewals go by a lane:
// nobody waits for them, and while one is under way others gather for one command.
func (x *Executor) sendQuickly(c try, s *Script, keys, args []any, full bool) (a answer, sent bool) {
	if c.n > 1 || c.e.Batchable || c.e.Replicas.N > 0 {
		return a, false
	}
	g := x.engineOf(c.ctx, keys[0].(string))
	if g == nil {
		return a, false
	}
	alone := g.underWay.Add(1) == 1
	defer g.underWay.Add(-1)
	q := g.quick.Load()
	switch {
	case !alone, x.late.has(keys):
		return a, false
	case q == nil:
		g.openQuick()
		return a, false
	case !q.line.TryLock():
		return a, false
	}
	defer q.line.Unlock()
	if g.quick.Load() != q { // it has been left meanwhile
		return a, false
	}
	return g.sendOn(q, c, newCall(c.ctx, s, full || g.server.scripts.lacks(s, c.sent), keys, args))
}

// sendOn sends cmd on q, whose line is held. false: it was not sent, because q is gone.
func (g *engine) sendOn(q *quick, c try, cmd *call) (a answer, sent bool) {
	x, l, began, on := g.exec, g.lane.Load(), time.Now(), q.conn.Load()
	answers := l.answers.Load()
	limit, watch := x.limits.untilEndOf(c.ctx, began, c.patience)
	on.begin(c.ctx, watch)
	a = guarded(func() answer { return answerTo(cmd, q.rdb.Process(limit, cmd)) })
	a.server = g.server
	answered := a.err == nil || Replied(a.err)
	if on.done() && answered && !redis.IsReadOnlyError(a.err) && time.Since(began) <= x.Patience/2 {
		return a, true
	}
	defer g.quick.CompareAndSwap(q, nil)
	if end, _ := limit.Deadline(); limit == c.ctx && !time.Now().Before(end) {
		<-limit.Done() // at any moment
	}
	switch ended := c.ctx.Err(); {
	case answered:
		x.Go(q.close)
		return a, true
	case !on.written:
		x.Go(q.close)
		return answer{err: fmt.Errorf("%w: %w", errNotSent, ended), server: g.server}, ended != nil
	case ended != nil:
		u := newUnderWay(keysOf(cmd))
		x.late.giveUp(u, x.Patience)
		return g.leave(q, u, ended), true
	case isTimeout(a.err):
		l.unanswered(answers)
		return g.leave(q, newUnderWay(nil), lockerr.NoAnswerWithin(c.patience)), true
	default: // the connection broke
		x.Go(q.close)
		return a, true
	}
}

// leave leaves q to a goroutine, which waits for the answer to the command u. Until then that is pending, with err.
func (g *engine) leave(q *quick, u *underWay, err error) answer {
	x, answered := g.exec, make(chan answer, 1)
	x.Go(func() {
		defer x.late.end(u)
		defer q.close()
		ctx, cancel := context.WithTimeout(x.life, max(x.longest(), x.readTimeout(g.node)))
		defer cancel()
		answered <- guarded(func() answer { return q.conn.Load().answer(ctx) })
	})
	return answer{err: err, server: g.server, pending: func(ctx context.Context) answer {
		a := receive(ctx, answered)
		a.server = g.server
		return a
	}}
}
