// Example is a service that counts what its locks do. It prints the counters as Prometheus gets them. With -listen it works
// until it is interrupted, and serves /metrics.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/relockprom"
)

func main() {
	addr := flag.String("redis", "", "`host:port` of a Redis; without it an embedded one")
	listen := flag.String("listen", "", "`host:port` to serve /metrics at")
	flag.Parse()
	if *addr == "" {
		embedded := miniredis.NewMiniRedis()
		if err := embedded.Start(); err != nil {
			log.Fatal(err)
		}
		*addr = embedded.Addr()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, *addr, *listen); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer, addr, listen string) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	collector, err := relockprom.NewCollector()
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	if err := registry.Register(collector); err != nil {
		return err
	}
	locks, err := relock.New(rdb, relock.WithHooks(collector.Hooks()))
	if err != nil {
		return err
	}
	defer locks.Close()
	if listen != "" {
		return serve(ctx, listen, registry, locks)
	}
	if err := work(ctx, locks); err != nil {
		return err
	}
	return show(out, registry)
}

// work acquires three locks and a permit, finds a lock taken, and loses a lock.
func work(ctx context.Context, locks *relock.Client) error {
	for _, name := range []string{"example-order:1", "example-order:2", "example-order:3"} {
		m := locks.Mutex(name)
		err := m.Do(ctx, func(ctx context.Context) error {
			if name != "example-order:3" {
				_, err := locks.Mutex(name, relock.WithOwner("another")).TryLock(ctx)
				return err
			}
			_, err := m.ForceUnlock(ctx)
			return err
		})
		if err != nil && !errors.Is(err, relock.ErrLost) {
			return err
		}
	}
	return locks.Semaphore("example-llm", 3).Do(ctx, func(context.Context) error { return nil })
}

// show prints the counters that are not 0, as Prometheus gets them.
func show(out io.Writer, registry *prometheus.Registry) error {
	families, err := registry.Gather()
	if err != nil {
		return err
	}
	for _, family := range families {
		var text strings.Builder
		if _, err := expfmt.MetricFamilyToText(&text, family); err != nil {
			return err
		}
		for line := range strings.Lines(text.String()) {
			if strings.Contains(line, "_total{") && !strings.HasSuffix(line, " 0\n") {
				fmt.Fprint(out, line)
			}
		}
	}
	return nil
}

// serve works once a second, until ctx ends.
func serve(ctx context.Context, addr string, registry *prometheus.Registry, locks *relock.Client) error {
	http.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	server := &http.Server{Addr: addr, ReadHeaderTimeout: time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.ListenAndServe() }()
	for tick := time.NewTicker(time.Second); ; {
		select {
		case <-tick.C:
			if err := work(ctx, locks); err != nil && ctx.Err() == nil {
				return errors.Join(err, server.Close())
			}
		case <-ctx.Done():
			return server.Close()
		case err := <-ended:
			return err
		}
	}
}
