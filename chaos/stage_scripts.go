package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
)

// The verbs of the library, each a script on Redis.
const (
	acquire = "acquire"
	reenter = "reenter"
	renew   = "renew"
	release = "release"
	handoff = "handoff"
)

// learnScripts finds out which script the library runs for which verb, by watching it: so
// that faults can be aimed, at whatever the scripts are.
func learnScripts() (map[string]redistest.Match, error) {
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
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return learn(ctx, locks, relay)
}

func learn(ctx context.Context, locks *relock.Client, relay *redistest.Relay) (map[string]redistest.Match, error) {
	scripts := make(map[string]redistest.Match)
	known := make(map[string]bool)
	// note adds the scripts that were run for the first time to those of a verb.
	note := func(verb string) (found bool) {
		for _, e := range relay.Log() {
			if source := e.Command.Arg(1); e.Command.Name() == "EVAL" && !known[source] {
				known[source], found = true, true
				scripts[verb] = either(scripts[verb], redistest.Script(source))
			}
		}
		return found
	}
	renewed, contended := make(chan relock.Event, 100), make(chan relock.Event, 100)
	m := locks.Mutex("learn", relock.WithRenewInterval(50*time.Millisecond), relock.WithHooks(relock.Hooks{
		Renewed:   func(e relock.Event) { renewed <- e },
		Contended: func(e relock.Event) { contended <- e },
	}))
	fair := locks.FairMutex("learn")
	renewedSide, contendedSide := make(chan relock.Event, 100), make(chan relock.Event, 100)
	sides := locks.RWMutex("learn-sides", relock.WithRenewInterval(50*time.Millisecond), relock.WithHooks(relock.Hooks{
		Renewed:   func(e relock.Event) { renewedSide <- e },
		Contended: func(e relock.Event) { contendedSide <- e },
	}))
	await := func(c <-chan relock.Event) error {
		select {
		case <-c:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	next := make(chan error, 1)
	// follow has another goroutine wait for a lock, and give it back.
	follow := func(m interface {
		Lock(context.Context) error
		Unlock() error
	}, contended <-chan relock.Event) error {
		go func() {
			err := m.Lock(ctx)
			if err == nil {
				err = m.Unlock()
			}
			next <- err
		}()
		return await(contended)
	}
	steps := []struct {
		verb string // that is run for the first time
		do   func() error
	}{
		{acquire, func() error { return m.Lock(ctx) }},
		{renew, func() error { return await(renewed) }},
		{reenter, func() error { return m.Lock(ctx) }},
		{release, m.Unlock},
		// Locks that are renewed together are renewed by a script of its own.
		{renew, func() error { return renewTogether(ctx, locks, relay, known) }},
		{"", func() error { return follow(m, contended) }},
		{handoff, m.Unlock},
		{"", func() error { return <-next }},
		// A fair lock is another one only for those who come and go.
		{acquire, func() error { return fair.Lock(ctx) }},
		{release, fair.Unlock},
		// A read-write lock has two sides. Who writes counts and renews like others.
		{acquire, func() error { return sides.RLock(ctx) }},
		{renew, func() error { return await(renewedSide) }},
		{reenter, func() error { return sides.RLock(ctx) }},
		{release, sides.RUnlock},
		{"", sides.RUnlock},
		{acquire, func() error { return sides.Lock(ctx) }},
		{"", func() error { return follow(sides, contendedSide) }},
		{handoff, sides.Unlock},
		{release, func() error { return <-next }},
	}
	for _, step := range steps {
		if err := step.do(); err != nil {
			return nil, fmt.Errorf("learning the script of %s: %w", step.verb, err)
		}
		if !note(step.verb) && step.verb != "" {
			return nil, fmt.Errorf("the library runs no script of its own for %s", step.verb)
		}
	}
	return scripts, nil
}

// renewTogether holds locks until several of them have been renewed by one script, which is none of
// those known.
func renewTogether(ctx context.Context, locks *relock.Client, relay *redistest.Relay, known map[string]bool) (err error) {
	for i := range 10 {
		m := locks.Mutex(fmt.Sprint("learn-", i), relock.WithRenewInterval(50*time.Millisecond))
		if err := m.Lock(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.Unlock()) }()
	}
	unknown := func(c redistest.Command) bool { return c.Name() == "EVAL" && !known[c.Arg(1)] }
	for relay.Count(unknown) == 0 {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// either chooses what one of the two does; the first may be nil.
func either(one, other redistest.Match) redistest.Match {
	if one == nil {
		return other
	}
	return func(c redistest.Command) bool { return one(c) || other(c) }
}
