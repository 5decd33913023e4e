package relock_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// cable is what leads to a Redis, until it is cut.
type cable struct {
	options *redis.Options // of clients that use it
	refusal error          // of dials when it is cut; nil: nothing at the other end answers

	mu    sync.Mutex
	down  bool
	conns []net.Conn
}

// cableTo returns a cable to where rdb leads.
func cableTo(rdb *redis.Client, refusal error) *cable {
	o := *rdb.Options()
	l := &cable{options: &o, refusal: refusal}
	dial := o.Dialer
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.down && l.refusal != nil {
			return nil, l.refusal
		}
		conn, err := dial(ctx, network, addr)
		if err == nil {
			l.conns = append(l.conns, conn)
			conn = &cableConn{Conn: conn, cable: l}
		}
		return conn, err
	}
	return l
}

// cut cuts the line. Connections are closed if dials are refused, and else are silent.
func (l *cable) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = true
	if l.refusal != nil {
		for _, conn := range l.conns {
			_ = conn.Close()
		}
	}
}

// client returns a Redis client for the server at addr, which the line leads to as well; "": for that at its end.
func (l *cable) client(t *testing.T, addr string) *redis.Client {
	t.Helper()
	o := *l.options
	if addr != "" {
		o.Addr = addr
	}
	rdb := redis.NewClient(&o)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// mend has what comes from now on arrive.
func (l *cable) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = false
}

// isCut reports whether the line has been cut.
func (l *cable) isCut() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.down
}

type cableConn struct {
	net.Conn
	cable *cable
}

func (c *cableConn) Write(p []byte) (int, error) {
	if c.cable.isCut() {
		if c.cable.refusal != nil {
			return 0, io.ErrClosedPipe
		}
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// errorLog collects errors by what they were met in.
type errorLog struct {
	mu   sync.Mutex
	errs map[string][]error
}

func (l *errorLog) note(what string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.errs == nil {
		l.errs = make(map[string][]error)
	}
	l.errs[what] = append(l.errs[what], err)
}

// hooks records the errors that hooks receive.
func (l *errorLog) hooks() relock.Hooks {
	return relock.Hooks{
		Released:    func(e relock.Event) { l.note("Released", e.Err) },
		RenewFailed: func(e relock.Event) { l.note("RenewFailed", e.Err) },
		Lost:        func(e relock.Event) { l.note("Lost", e.Err) },
	}
}

// Whatever becomes of Redis: the caller's context is alive, so nothing may say that it has ended.
func TestErrors_NoneReadsLikeTheEndOfALivingContext(t *testing.T) {
	t.Parallel()
	redistest.Timed(t)
	timedOut := redistest.DialTimedOut(t)
	for fault, refusal := range map[string]error{"silence": nil, "dials time out": timedOut} {
		for kind, locks := range map[string]func(*testing.T, *cable, ...relock.ClientOption) (*relock.Client, lockMaker){
			"plain": func(t *testing.T, l *cable, opts ...relock.ClientOption) (*relock.Client, lockMaker) {
				c := relock.LocksOn(t, l.client(t, ""), opts...)
				return c, c.Mutex
			},
			"fair": func(t *testing.T, l *cable, opts ...relock.ClientOption) (*relock.Client, lockMaker) {
				c := relock.LocksOn(t, l.client(t, ""), opts...)
				return c, c.FairMutex
			},
			"quorum": func(t *testing.T, l *cable, opts ...relock.ClientOption) (*relock.Client, lockMaker) {
				c := relock.QuorumOn(t, []redis.UniversalClient{l.client(t, ""), l.client(t, redistest.Mini(t).Addr), l.client(t, redistest.Mini(t).Addr)}, opts...)
				return c, c.Mutex
			},
		} {
			t.Run(fault+", "+kind, func(t *testing.T) {
				t.Parallel()
				l, seen := cableTo(redistest.Mini(t).Client(t), refusal), &errorLog{}
				c, mutex := locks(t, l, relock.WithTTL(900*time.Millisecond), relock.WithHooks(seen.hooks()))
				seen.everyCall(t, l, mutex)
				if kind == "plain" { // it takes its time
					seen.note("Close", c.Close())
				}
				l.mend()
				seen.requireNoContextError(t)
			})
		}
	}
}

type lockMaker func(name string, opts ...relock.MutexOption) *relock.Mutex

// everyCall notes what every call says when the line to Redis is cut.
func (l *errorLog) everyCall(t *testing.T, line *cable, mutex lockMaker) {
	t.Helper()
	key, brief := redistest.Key(t), relock.WithWaitTimeout(500*time.Millisecond)
	locktest.RequireLocked(t, mutex(key+"kept"))
	locktest.RequireLocked(t, mutex(key+"closed", relock.WithTTL(time.Minute))) // it is not lost before Close comes
	var ready, done sync.WaitGroup
	isCut := make(chan struct{})
	for what, m := range map[string]*relock.Mutex{
		"Lock": mutex(key + "free"), "Lock of a fixed owner": mutex(key+"free", relock.WithOwner("job")),
		"Lock with a timeout": mutex(key+"free", brief), "Lock in line": mutex(key+"kept", brief),
		"TryLock": mutex(key + "other"), "State": mutex(key + "other"), "ForceUnlock": mutex(key + "kept"),
		"Unlock": mutex(key + "a"), "Unlock of a level": mutex(key + "b"), "re-entry": mutex(key + "c"), "loss": mutex(key + "d"),
	} {
		ready.Add(1)
		done.Go(func() {
			ctx := t.Context()
			before := map[string]int{"Unlock": 1, "Unlock of a level": 2, "re-entry": 1, "loss": 1}[what]
			for range before {
				l.note("", m.Lock(ctx))
			}
			ctx = m.Context(ctx)
			ready.Done()
			<-isCut
			var err error
			switch what {
			case "TryLock":
				_, err = m.TryLock(t.Context())
			case "State":
				_, err = m.State(t.Context())
			case "ForceUnlock":
				_, err = m.ForceUnlock(t.Context())
			case "Unlock", "Unlock of a level":
				err = m.Unlock()
			case "loss":
				<-ctx.Done()
				l.note("Lock inside of a loss", m.Lock(t.Context()))
				l.note("the cause of a context", context.Cause(ctx))
				err = m.Unlock()
			default:
				err = m.Lock(t.Context())
			}
			l.note(what, err)
		})
	}
	ready.Wait()
	line.cut()
	close(isCut)
	done.Wait()
}

// requireNoContextError requires that errors were met wherever they must be, and that none reads
// like the end of a context.
func (l *errorLog) requireNoContextError(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	require.ErrorIs(t, l.errs["loss"][0], relock.ErrLost)
	require.NotEmpty(t, l.errs["Lost"])
	for what, errs := range l.errs {
		for _, err := range errs {
			if what == "" {
				require.NoError(t, err)
			} else if what != "Released" && what != "Close" {
				require.Error(t, err, what)
			}
			require.False(t, errors.Is(err, context.DeadlineExceeded), "%s: %v", what, err)
			require.False(t, errors.Is(err, context.Canceled), "%s: %v", what, err)
		}
	}
}
