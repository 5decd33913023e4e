package redisexec

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/goroutine"
	"github.com/relock-go/relock/internal/lockerr"
)

// server is the state of one Redis process for an executor: its name, and the most informative failure
// since it answered last. There is one for each engine, and one for commands that the application's client routes.
//
// Calls share what they find. A call without an answer could report only that; but another call
// may have met a refused connection a moment ago, or one call may dial and look, for all of them.
//
//	well --learn: a copy, or a look, has failed--> ailing --learn: an equally or more informative failure--> ailing
//	any --answered--> well
//
// All of it is for people: it is used for the texts of errors. Whether a lock is held never depends on it. Only Close
// acts on it: it does not wait for the undo of a name on a server that cannot be reached (Unreachable).
//
// What can come late: the failure of a copy that was sent before the last answer. It stays until the next one.
type server struct {
	// These never change.
	addr string                                      // "" if the address is not known beforehand
	dial func(ctx context.Context) (net.Conn, error) // nil: its address is unknown

	scripts cache

	ailment atomic.Pointer[ailment] // nil: nothing has failed since it answered last

	mu   sync.Mutex
	look *look // the last one; guarded by mu
}

// ailment is the most informative failure of a server since it answered last.
type ailment struct {
	err error
	at  clock.Instant
}

// How much an error explains, from the least to the most.
const (
	explainsNothing = iota // except that no answer arrived in time
	explainsBreak          // a connection broke, or none was available in time
	explainsBarrier        // nothing listens there, or it cannot be reached
	explainsAll            // an error of Redis itself, or of the client
)

// informativeness returns how much err explains. Only this function decides which of several
// errors with the same cause is reported.
func informativeness(err error) int {
	var reply redis.Error
	var network *net.OpError
	var panicked *goroutine.Panic
	switch {
	case errors.As(err, &reply), errors.As(err, &panicked), errors.Is(err, redis.ErrClosed):
		return explainsAll
	case silent(err), errors.Is(err, context.Canceled):
		return explainsNothing
	case !errors.As(err, &network): // as io.EOF
		return explainsBreak
	case network.Op != "dial" && network.Timeout(): // of a read or a write: that is a silence
		return explainsNothing
	case network.Op != "dial" || network.Timeout(): // a dial without an answer may be due to the network
		return explainsBreak
	default:
		return explainsBarrier
	}
}

// MoreInformative returns the more informative of two errors with the same cause, or the second if they are equally informative.
// The first may be nil.
func MoreInformative(first, second error) error {
	if first != nil && informativeness(first) > informativeness(second) {
		return first
	}
	return second
}

// answered records that the server has answered.
func (s *server) answered() {
	if s.ailment.Load() != nil { // which is rare; an unconditional store is expensive with many processors
		s.ailment.Store(nil)
	}
}

// record records the failure of a copy of a command, or of a look, if it is about the server
// and informative: not about that one command, as NOPERM is.
func (s *server) record(err error, now clock.Instant) {
	// After NOAUTH another copy is useless, but it is about the server: every command would get it.
	if informativeness(err) == explainsNothing || !judge(err).resend && !redis.HasErrorPrefix(err, "NOAUTH") {
		return
	}
	for {
		// Of two equal failures the later one stays, because it is newer.
		known := s.ailment.Load()
		if known != nil && informativeness(known.err) > informativeness(err) {
			return
		}
		if s.ailment.CompareAndSwap(known, &ailment{err, now}) {
			return
		}
	}
}

// explains returns how informative the ailment of the server is.
func (s *server) explains() int {
	if known := s.ailment.Load(); known != nil {
		return informativeness(known.err)
	}
	return explainsNothing
}

// explain adds the name of the server to err, and its ailment if that is more informative. An older ailment
// is reported with its age, because it may be over by now.
func (s *server) explain(err error, now clock.Instant) error {
	if known := s.ailment.Load(); known != nil && informativeness(known.err) > informativeness(err) {
		if ago := now.Since(known.at); ago < time.Second {
			err = fmt.Errorf("%w: %w", err, known.err)
		} else {
			err = fmt.Errorf("%w; %v earlier: %w", err, ago.Round(time.Millisecond), known.err)
		}
	}
	return s.named(err)
}

// named adds the name of the server to err, unless err has it.
func (s *server) named(err error) error {
	addr := s.addr
	if addr == "" && informativeness(err) == explainsNothing {
		addr = s.seen() // a reply may come from another server, from before a failover
	}
	if addr == "" || strings.Contains(err.Error(), addr) {
		return err
	}
	return fmt.Errorf("%s: %w", addr, err)
}

// lately returns err, which may be nil, or the ailment of the server since began if that is
// more informative. An older ailment is left out: this call may have had other reasons.
func (s *server) lately(began clock.Instant, err error) error {
	known := s.ailment.Load()
	if known != nil && known.at.Mono >= began.Mono && (err == nil || informativeness(known.err) > informativeness(err)) {
		err = known.err
	}
	if err == nil {
		return nil
	}
	return s.named(err)
}

// look is one dial of a server, to find out why it is silent: that nothing listens there, for instance.
// go-redis takes longer to find out than a copy of a command is waited for. A server has one
// look at a time, however many calls wait for it, and none within lookLife after the last.
type look struct {
	began clock.Instant
	over  chan struct{} // closed at its end
	ended clock.Instant // this and the following are set at its end
	addr  string        // that the dialer chose
}

// lookLife is how long the result of a look is valid: a server is not dialed again before,
// however many calls ask.
const lookLife = time.Second

// see waits for a look at s to end, for d at most, or for ctx. It begins one if none is running
// and none has ended a moment ago. The look goes on without the callers that have stopped waiting. Its
// result is in the ailment of s.
func (x *Executor) see(ctx context.Context, s *server, d time.Duration) {
	l := x.lookAt(s)
	if l == nil {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-l.over:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// lookAt returns the look at s to wait for; nil if there can be none.
func (x *Executor) lookAt(s *server) *look {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dial == nil {
		return nil
	}
	if l := s.look; l != nil && (!goroutine.Closed(l.over) || x.Now().Since(l.ended) < lookLife) {
		return l
	}
	// mu is held, and x.mu is taken under it, never the other way round.
	l := &look{began: x.Now(), over: make(chan struct{})}
	if !x.aside(func() { x.peer(s, l) }) {
		return nil
	}
	s.look = l
	return l
}

// peer dials s, and hangs up. Not every dialer respects its context: the one for TLS does not.
func (x *Executor) peer(s *server, l *look) {
	defer close(l.over)
	ctx, cancel := context.WithTimeout(x.life, x.Patience)
	defer cancel()
	conn, err := net.Conn(nil), error(nil)
	func() {
		defer goroutine.Recover(&err)
		conn, err = s.dial(ctx)
	}()
	err = noNil(err)
	var network *net.OpError
	switch {
	case err == nil:
		l.addr = conn.RemoteAddr().String()
		_ = conn.Close()
	case errors.As(err, &network) && network.Addr != nil:
		l.addr = network.Addr.String()
	}
	l.ended = x.Now()
	// A deadline here belongs to the look: reported as it is, it would match the end of a caller's context.
	switch {
	case err == nil, errors.Is(err, redis.ErrClosed):
	case errors.Is(err, context.DeadlineExceeded):
		s.record(lockerr.Fault(err), l.ended)
	default:
		s.record(err, l.ended)
	}
}

// isStuck reports whether a look at s has had no result within one patience.
func (x *Executor) isStuck(s *server) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.look != nil && !goroutine.Closed(s.look.over) && x.Now().Since(s.look.began) >= x.Patience
}

// seen returns the address that the last look at s has found; "" if there is none.
func (s *server) seen() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.look == nil || !goroutine.Closed(s.look.over) {
		return ""
	}
	return s.look.addr
}

// explain adds to err, the failure of the last of so many copies, the name of the server, and its
// ailment: that nothing listens there, for instance.
func (x *Executor) explain(c *try, s *server, copies int, err error) error {
	// A refused connection, or an error of Redis, needs no look.
	if informativeness(err) < explainsBarrier {
		d := c.e.Patience + MinCopyPatience // as long as a look takes; after that its dialer names the server
		if copies == 1 {
			d = c.e.Glance()
		}
		x.see(c.ctx, s, d)
	}
	return s.explain(err, x.Now())
}

// Explain adds to err, a silence, the most informative failure of a server that x uses.
func (x *Executor) Explain(err error) error {
	x.mu.Lock()
	worst := x.anywhere
	for _, e := range x.engines {
		if e.server.explains() > worst.explains() {
			worst = e.server
		}
	}
	x.mu.Unlock()
	return worst.explain(err, x.Now())
}

// lookSoon begins a look at the server of key when a copy has not been answered for d, half of its patience, so that a
// call in a hurry need not wait for it afterwards.
func (x *Executor) lookSoon(ctx context.Context, d time.Duration, key string) *time.Timer {
	return time.AfterFunc(d, func() {
		var err error
		defer goroutine.Recover(&err)
		x.lookAt(x.serverOf(ctx, key))
	})
}

// Unreachable reports whether no connection to the master of key can be opened, or none within one patience, for
// which it blocks at most. An answer meanwhile clears the ailment: then the master is reachable.
func (x *Executor) Unreachable(ctx context.Context, key string) bool {
	s := x.serverOf(ctx, key)
	if x.isStuck(s) {
		return true
	}
	x.see(ctx, s, x.Patience)
	if x.isStuck(s) {
		return true
	}
	known := s.explains()
	return known == explainsBarrier || known == explainsBreak
}

// Glance returns how long a call in a hurry waits to find out why it was not answered.
func (e CallOptions) Glance() time.Duration { return min(e.Patience/4, MinCopyPatience) }

// givenUp completes the outcome of a call that ctx ended. Its last copy went to s. There was no time to find out why that
// copy was not answered, but another call may have done so meanwhile.
func (x *Executor) givenUp(ctx context.Context, out *Outcome, s *server, began clock.Instant) {
	out.Err = s.lately(began, out.Err)
	*out = out.Abandoned(ctx)
	if errors.Is(context.Cause(ctx), lockerr.ErrNoAnswer) { // a bound of the library, which means a silence
		out.Err = s.explain(out.Err, x.Now())
	}
}

// behindSentinel is what go-redis calls the address of a client whose dialer asks Sentinel.
const behindSentinel = "FailoverClient"

func isBehindSentinel(rdb *redis.Client) bool { return rdb.Options().Addr == behindSentinel }

// serverOf returns the server of rdb. At most its address is known.
func serverOf(rdb redis.UniversalClient) *server {
	s := &server{addr: AddressOf(rdb)}
	if client, single := rdb.(*redis.Client); single {
		o := client.Options()
		s.dial = func(ctx context.Context) (net.Conn, error) { return o.Dialer(ctx, o.Network, o.Addr) }
	}
	return s
}

// AddressOf returns the address that rdb leads to; "" if it is unknown.
func AddressOf(rdb redis.UniversalClient) string {
	switch rdb := rdb.(type) {
	case *redis.Client:
		if !isBehindSentinel(rdb) {
			return rdb.Options().Addr
		}
	case *redis.ClusterClient:
		return strings.Join(rdb.Options().Addrs, ",")
	}
	return ""
}
