package redisexec

import (
	"cmp"
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/goroutine"
)

// pipeline sends the commands of all goroutines to one Redis process, on one connection, without waiting for answers in
// between. go-redis opens the connection: it dials, authenticates and selects the database. From then on the pipeline
// writes and reads by itself, in RESP 2.
//
//	no wire --a command, a dial, a handshake--> a wire --an error, or too old and nothing in flight--> no wire
//	no wire --a command, which cannot be sent: it fails--> no wire
//
// Invariants:
//   - Commands are written once, in the order of their submission.
//   - One goroutine at a time writes, until no command is left, and one reads (see wire). A lone command needs no goroutine of
//     the pipeline (lone.go). Only goroutines of the pipeline open a wire.
//   - Each command ends: with its answer, or with the error of its wire.
type pipeline struct {
	options *redis.Options // of the wire
	pool    *redis.Client  // in the place of a wire, see exchange; nil: none
	probe   *redis.Client  // see isClosed
	callers *atomic.Int64  // that wait for answers, or are about to

	life       context.Context // of dials and the wire
	end        context.CancelFunc
	goroutines goroutine.Group

	mu      sync.Mutex
	settled sync.Cond // nothing is to be written, or nothing is in flight
	queued  []*call   // to be written
	writing bool
	closed  bool
	wire    *wire // the last one; nil: none yet

	spare []*call // these are the writer's
	bytes []byte
}

// openPipeline returns a pipeline for g. It opens its connection with the first command.
func (x *Executor) openPipeline(g *engine) *pipeline {
	p := &pipeline{options: ownOptions(g.node.Options(), 1, x.readTimeout(g.node)), probe: x.cloneOf(g.node), callers: &g.underWay}
	p.probe.Options().Limiter = nil // it is not asked for what is not sent
	p.settled.L = &p.mu
	p.life, p.end = context.WithCancel(context.Background())
	return p
}

// crowd is the least number of callers for which the writer yields. Many answers arrive together, and the callers that they
// wake run one after the other. After the yield there are the commands of all, for few system calls.
const crowd = 8

// submit sends cmd after all commands that were submitted before.
func (p *pipeline) submit(cmd *call) {
	cmd.done = make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		cmd.finish(nil, redis.ErrClosed)
		return
	}
	p.queued = append(p.queued, cmd)
	if !p.writing {
		p.writing = true
		p.goroutines.Go(p.write)
	}
}

// write sends the queued commands until there are none.
func (p *pipeline) write() {
	for {
		if p.callers.Load() >= crowd {
			runtime.Gosched()
		}
		p.mu.Lock()
		batch := p.queued
		if len(batch) == 0 {
			p.writing = false
			p.settled.Broadcast()
			p.mu.Unlock()
			return
		}
		p.queued = p.spare
		p.mu.Unlock()
		if err := p.send(batch); err != nil {
			for _, cmd := range batch {
				cmd.finish(nil, err)
			}
		}
		p.spare = emptied(batch)
	}
}

// send sends a batch. After an error nothing of it was sent.
func (p *pipeline) send(batch []*call) error {
	if p.pool != nil {
		p.exchange(batch)
		return nil
	}
	if err := admit(p.options.Limiter, batch); err != nil {
		return err
	}
	for {
		w, err := p.connected()
		if err != nil {
			return err
		}
		if w.send(batch) {
			return nil
		}
	}
}

// mostKept is the largest list that is kept for the next batch, in commands. A crowd that has come once leaves nothing larger.
const mostKept = 1 << 12

// emptied returns room for the next batch in the place of a list that is over.
func emptied(batch []*call) []*call {
	if clear(batch); cap(batch) > mostKept {
		return nil
	}
	return batch[:0]
}

// exchange sends a batch on a connection of the application's pool, and waits for the answers. Behind Sentinel this takes
// the place of a wire, because go-redis closes the connections of its pools after a failover, but would not close a wire.
func (p *pipeline) exchange(batch []*call) {
	var err error
	func() {
		defer goroutine.Recover(&err)
		_, err = p.pool.Pipelined(p.life, func(out redis.Pipeliner) error {
			for _, cmd := range batch {
				_ = out.Process(p.life, cmd)
			}
			return nil
		})
	}()
	for _, cmd := range batch {
		cmd.finish(cmd.Val(), errorOf(cmd, err))
	}
}

// connected returns the wire, or a new one if there is none that can be used.
func (p *pipeline) connected() (*wire, error) {
	p.mu.Lock()
	w := p.wire
	usable := w != nil && w.isUsable()
	if usable && w.isOld(time.Now()) {
		for w.inFlight > 0 {
			p.settled.Wait()
		}
		usable = false
	}
	p.mu.Unlock()
	if usable {
		return w, nil
	}
	if w != nil {
		w.fail(net.ErrClosed)
	}
	w, err := p.open()
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.wire = w
	p.mu.Unlock()
	return w, nil
}

// open has go-redis open a connection: a client is made for it, which has to give it up when it is ready for commands.
func (p *pipeline) open() (w *wire, err error) {
	defer goroutine.Recover(&err) // the dialer and OnConnect are the application's
	if p.isClosed() {
		return nil, redis.ErrClosed
	}
	dialing, cancel := p.life, context.CancelFunc(func() {})
	if p.options.DialTimeout > 0 {
		dialing, cancel = context.WithTimeout(p.life, p.options.DialTimeout)
	}
	defer cancel()
	conn, err := p.options.Dialer(dialing, p.options.Network, p.options.Addr)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(p.life, func() { _ = conn.Close() })
	o, dialed, ready := *p.options, false, false
	defer func() {
		if !ready {
			stop()
			_ = conn.Close()
		}
	}()
	o.Limiter = nil
	o.Dialer = func(context.Context, string, string) (net.Conn, error) {
		if dialed {
			return nil, errOneConnection
		}
		dialed = true
		return handedOver{conn}, nil
	}
	o.OnConnect = func(ctx context.Context, cn *redis.Conn) error {
		if connect := p.options.OnConnect; connect != nil {
			if err := connect(ctx, cn); err != nil {
				return err
			}
			// It may have given up a command, and ignored that. Then go-redis sends no other: the late answer would be taken for
			// that to ours.
			if err := cn.Ping(ctx).Err(); err != nil && !Replied(err) {
				return err
			}
		}
		ready = true
		return errReady
	}
	rdb := redis.NewClient(&o)
	defer func() { _ = rdb.Close() }() // also after a panic: it may have subscribed to credentials
	err = rdb.Process(p.life, redis.NewCmd(p.life, "ping"))
	switch {
	case p.life.Err() != nil:
		return nil, redis.ErrClosed
	case !ready:
		return nil, cmp.Or(err, errOneConnection)
	}
	now := time.Now()
	w = &wire{Conn: conn, pipe: p, opened: now, idle: now, close: func() { stop(); _ = conn.Close() }}
	w.peek.at(conn)
	return w, nil
}

// handedOver is a connection that go-redis does not close.
type handedOver struct{ net.Conn }

func (handedOver) Close() error { return nil }

var errOneConnection = errors.New("this client has one connection, which is gone")

// errReady ends go-redis' use of a connection before the first command.
var errReady = errors.New("the connection is the pipeline's now")

// isClosed reports whether the application has closed its client: that gives a connection to no command, and says so. Any
// other client gives none to a context that has ended.
func (p *pipeline) isClosed() bool {
	return errors.Is(p.probe.Process(ended, redis.NewCmd(ended, "ping")), redis.ErrClosed)
}

// close ends a pipeline. Submitted commands have so long to be answered; then their connection is closed.
func (p *pipeline) close(grace time.Duration) {
	defer time.AfterFunc(grace, p.end).Stop()
	p.mu.Lock()
	p.closed = true
	for p.writing || p.wire != nil && p.wire.inFlight > 0 {
		p.settled.Wait()
	}
	w := p.wire
	p.mu.Unlock()
	p.end()
	if w != nil {
		w.close()
	}
	p.goroutines.Wait(context.Background())
}

// admit asks a Limiter, which may be nil, for a batch. It gets the result with the last answer.
func admit(l redis.Limiter, batch []*call) (err error) {
	if l == nil {
		return nil
	}
	defer goroutine.Recover(&err)
	if err := l.Allow(); err != nil {
		return err
	}
	batch[len(batch)-1].limiter = l
	return nil
}

// finish ends a command of a pipeline.
func (c *call) finish(value any, err error) {
	if c.limiter != nil {
		func() {
			var panicked error
			defer goroutine.Recover(&panicked)
			if Replied(err) {
				c.limiter.ReportResult(nil)
			} else {
				c.limiter.ReportResult(err)
			}
		}()
	}
	c.SetVal(value)
	if c.err = err; c.done != nil { // the caller of a lone command looks by itself
		close(c.done)
	}
}

// answer waits for the answer, or for the end of ctx: then the answer is pending, and the command is still sent.
func (c *call) answer(ctx context.Context) (a answer) {
	select {
	case <-c.done:
		a = answerTo(c, c.err)
	case <-ctx.Done():
		a.err, a.pending = ctx.Err(), c.answer
	}
	return a
}
