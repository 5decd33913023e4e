// LLM is four pods that call a provider which answers three calls at a time, and refuses the others. A semaphore that the
// pods share keeps to that limit: no call is refused.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
)

const atOnce = 3 // calls that the provider allows

func main() {
	addr := flag.String("redis", "", "`host:port` of a Redis; without it an embedded one")
	flag.Parse()
	if *addr == "" {
		embedded := miniredis.NewMiniRedis()
		if err := embedded.Start(); err != nil {
			log.Fatal(err)
		}
		*addr = embedded.Addr()
	}
	if err := run(context.Background(), *addr); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, addr string) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	api, ended := &provider{}, make(chan error)
	for range 4 { // pods
		locks, err := relock.New(rdb)
		if err != nil {
			return err
		}
		defer locks.Close()
		model := &client{api, locks.Semaphore("example-llm", atOnce)}
		for range 5 {
			go func() { ended <- model.complete(ctx, "Why is the sky blue?") }()
		}
	}
	var errs []error
	for range 4 * 5 {
		errs = append(errs, <-ended)
	}
	fmt.Printf("%d calls answered, %d refused\n", api.answered.Load(), api.refused.Load())
	return errors.Join(errs...)
}

// client calls the provider with a permit.
type client struct {
	api     *provider
	permits *relock.Semaphore
}

func (c *client) complete(ctx context.Context, prompt string) error {
	return c.permits.Do(ctx, func(ctx context.Context) error { // ctx ends when the permit is lost
		return c.api.complete(ctx, prompt)
	})
}

// provider stands for a service with a limit.
type provider struct{ calls, answered, refused atomic.Int32 }

func (p *provider) complete(ctx context.Context, _ string) error {
	defer p.calls.Add(-1)
	if p.calls.Add(1) > atOnce {
		p.refused.Add(1)
		return errors.New("429 Too Many Requests")
	}
	select {
	case <-time.After(20 * time.Millisecond):
		p.answered.Add(1)
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
