package main

import (
	"context"
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
	renewed, contended := make(chan relock.Event, 100), make(chan relock.Event, 100)
	m := locks.Mutex("learn", relock.WithRenewInterval(50*time.Millisecond), relock.WithHooks(relock.Hooks{
		Renewed:   func(e relock.Event) { renewed <- e },
		Contended: func(e relock.Event) { contended <- e },
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
	steps := []struct {
		verb string // that is run for the first time
		do   func() error
	}{
		{acquire, func() error { return m.Lock(ctx) }},
		{renew, func() error { return await(renewed) }},
		{reenter, func() error { return m.Lock(ctx) }},
		{release, m.Unlock},
		{"", func() error {
			go func() {
				err := m.Lock(ctx)
				if err == nil {
					err = m.Unlock()
				}
				next <- err
			}()
			return await(contended)
		}},
		{handoff, m.Unlock},
		{"", func() error { return <-next }},
	}
	scripts := make(map[string]redistest.Match)
	known := make(map[string]bool)
	for _, step := range steps {
		if err := step.do(); err != nil {
			return nil, fmt.Errorf("learning the script of %s: %w", step.verb, err)
		}
		for _, e := range relay.Log() {
			if source := e.Command.Arg(1); e.Command.Name() == "EVAL" && !known[source] {
				known[source] = true
				scripts[step.verb] = redistest.Script(source)
			}
		}
		if step.verb != "" && scripts[step.verb] == nil {
			return nil, fmt.Errorf("the library runs no script of its own for %s", step.verb)
		}
	}
	return scripts, nil
}
