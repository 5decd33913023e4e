package redisexec

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/group"
)

// loads are the scripts that a server does not know and is being told, or was told a moment ago.
// After a SCRIPT FLUSH, a restart or a failover every command under way finds that out, and a
// script is fifty times the length of a command that names it. So one call sends it, as the EVAL
// that it needs anyway, since a user may lack SCRIPT LOAD; the others wait for that, and then name
// it again.
//
// latest has the last load of each script, under way or over. Nothing is taken out: there are a few scripts.
type loads struct {
	mu     sync.Mutex
	latest map[*Script]*load
}

// load is one EVAL by which a server gets to know a script. The call that sends it writes known and ended before
// it closes over; the others read them after that.
type load struct {
	over  chan struct{} // closed when it is
	known bool          // Redis has answered, so it knows the script
	ended clock.Instant // when
}

// join is for a call that has named s, by a copy sent at the time sent, and s was unknown. It returns a load to wait
// for; or, own, one that the caller has to do, and to end.
func (l *loads) join(s *Script, sent clock.Instant) (current *load, own bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// One that has ended well since the call named the script in vain will do: the server knows it by now. After one
	// that ended before, the server has forgotten the script again.
	if c := l.latest[s]; c != nil && (!group.Closed(c.over) || c.known && c.ended.Mono >= sent.Mono) {
		return c, false
	}
	if l.latest == nil {
		l.latest = make(map[*Script]*load)
	}
	own, current = true, &load{over: make(chan struct{})}
	l.latest[s] = current
	return current, own
}

// end tells the calls that wait for l whether Redis knows the script now.
func (l *load) end(known bool, now clock.Instant) {
	l.known, l.ended = known, now
	close(l.over)
}

// await reports whether l has ended before ctx.
func (l *load) await(ctx context.Context) bool {
	select {
	case <-l.over:
		return true
	case <-ctx.Done():
		return false
	}
}

// loadShare is the part of the patience with a copy that it may spend on waiting for another's
// load: it has to leave time for the call's own.
const loadShare = 2

// sendUnknown sends a copy whose script the server `to` did not know when it was sent by its digest.
// It waits for the load of another call for a part of its patience, and then goes on by itself.
func (x *Executor) sendUnknown(c try, to *server, s *Script, keys, args []any) answer {
	full := func() answer { return x.dispatch(c, keys, newCall(c.ctx, "eval", s.Source, keys, args)) }
	if c.e.Replicas.N > 0 { // that takes its time, and few do it at once
		return full()
	}
	waiting, cancel := context.WithTimeout(c.wait, c.e.Patience/loadShare)
	defer cancel()
	for {
		current, own := to.loads.join(s, c.sent)
		if own {
			a := full()
			// Also after a failure: then one of those that wait does it next.
			current.end(a.err == nil, x.Now())
			return a
		}
		if !current.await(waiting) {
			if c.wait.Err() != nil { // no one waits for the answer any more
				return answer{err: errNotSent, server: to}
			}
			return full() // its patience for others is over, but not that with its own command
		}
		if current.known {
			if a := x.sendNamed(c, s, keys, args); !unknownScript(a.err) {
				return a
			}
			return full() // another server than that one
		}
	}
}

// unknownScript reports whether Redis has answered that it does not know a script by its digest.
func unknownScript(err error) bool {
	return err != nil && redis.HasErrorPrefix(err, "NOSCRIPT")
}
