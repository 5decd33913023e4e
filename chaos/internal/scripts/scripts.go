// Package scripts finds out which script the library runs on Redis for which verb, by
// watching it use locks on a Redis in memory: so that faults can be aimed at one verb, however
// the scripts are written.
//
// It is independent of faults. scripts.go watches the library; steps.go makes the library run each script once.
package scripts

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
)

// Verb is an operation of the library on Redis. Each has one script, or one for each kind of lock.
type Verb string

// The verbs of the library.
const (
	Acquire Verb = "acquire"
	Reenter Verb = "reenter"
	Renew   Verb = "renew"
	Release Verb = "release"
	Poll    Verb = "poll"    // keeps entries in the line alive
	Handoff Verb = "handoff" // passes the lock to a waiter of the same process
	Rename  Verb = "rename"  // writes the current owner after local hand-overs
)

// Find returns, for each verb, a match for its scripts.
func Find() (map[Verb]redistest.Match, error) {
	server, err := miniredis.Run()
	if err != nil {
		return nil, err
	}
	defer server.Close()
	server.ClockTTL(true)
	relay, err := redistest.StartRelay(server.Addr())
	if err != nil {
		return nil, err
	}
	defer relay.Close()
	rdb := redis.NewClient(&redis.Options{Addr: relay.Addr})
	defer rdb.Close()
	locks, err := relock.New(rdb, relock.WithTTL(10*time.Second), relock.WithFencing())
	if err != nil {
		return nil, err
	}
	defer locks.Close()
	untokened, err := relock.New(rdb, relock.WithTTL(10*time.Second))
	if err != nil {
		return nil, err
	}
	defer untokened.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	l := &finder{
		ctx: ctx, locks: locks, untokened: untokened, relay: relay,
		known: make(map[string]bool), scripts: make(map[Verb]redistest.Match),
	}
	if err := l.findAll(); err != nil {
		return nil, err
	}
	return l.scripts, nil
}

// finder watches the scripts of the library, step by step.
type finder struct {
	ctx       context.Context
	locks     *relock.Client
	untokened *relock.Client   // for locks without a token
	relay     *redistest.Relay // between the library and Redis

	known   map[string]bool          // the scripts that were run, by source
	scripts map[Verb]redistest.Match // the result
}

// step makes the library run a script.
type step struct {
	verb Verb // of the script that runs for the first time; "": there is none
	do   func() error
}

func (l *finder) findAll() error {
	for _, s := range l.steps() {
		if err := s.do(); err != nil {
			return fmt.Errorf("learning the script of %s: %w", s.verb, err)
		}
		if !l.note(s.verb) && s.verb != "" {
			return fmt.Errorf("the library runs no script of its own for %s", s.verb)
		}
	}
	// A rename has the script of hand-overs, but only three arguments.
	passes := l.scripts[Handoff]
	l.scripts[Rename] = passes.And(func(c redistest.Command) bool { return len(c.ScriptArgs()) == 3 })
	l.scripts[Handoff] = passes.And(func(c redistest.Command) bool { return len(c.ScriptArgs()) > 3 })
	return nil
}

// note adds the scripts that ran for the first time to the match of a verb, and reports whether there are any.
func (l *finder) note(verb Verb) (found bool) {
	for _, e := range l.relay.Log() {
		if source := e.Command.Arg(1); e.Command.Name() == "EVAL" && !l.known[source] {
			l.known[source], found = true, true
			l.scripts[verb] = either(l.scripts[verb], redistest.Script(source))
		}
	}
	return found
}

// either matches what one of the two matches. The first may be nil.
func either(one, other redistest.Match) redistest.Match {
	if one == nil {
		return other
	}
	return func(c redistest.Command) bool { return one(c) || other(c) }
}
