package relockprom_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/relockprom"
)

// startRedis starts an in-memory Redis and returns a client of it.
func startRedis() (rdb *redis.Client, stop func()) {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	rdb = redis.NewClient(&redis.Options{Addr: server.Addr()})
	return rdb, func() {
		rdb.Close()
		server.Close()
	}
}

// show prints the series of the registry that are not 0, without the histograms.
func show(registry *prometheus.Registry) {
	families, err := registry.Gather()
	if err != nil {
		panic(err)
	}
	for _, family := range families {
		for _, metric := range family.Metric {
			if metric.Histogram == nil && valueOf(metric) != 0 {
				fmt.Println(series(family.GetName(), metric), valueOf(metric))
			}
		}
	}
}

func Example() {
	rdb, stop := startRedis()
	defer stop()
	registry := prometheus.NewRegistry() // or the default one: prometheus.MustRegister

	collector, err := relockprom.NewCollector()
	if err != nil {
		log.Fatal(err)
	}
	registry.MustRegister(collector)
	locks, err := relock.New(rdb, relock.WithHooks(collector.Hooks()))
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	ctx := context.Background()
	m, other := locks.Mutex("orders:42"), locks.Mutex("orders:42", relock.WithOwner("another"))
	m.Lock(ctx)
	other.TryLock(ctx)
	show(registry)
	// Output:
	// relock_acquisitions_total{kind="mutex",result="acquired"} 1
	// relock_acquisitions_total{kind="mutex",result="busy"} 1
	// relock_held{kind="mutex"} 1
}

// The name of an order is no label, but what comes before its number may be one.
func ExampleWithNameClass() {
	rdb, stop := startRedis()
	defer stop()
	registry := prometheus.NewRegistry()

	collector, err := relockprom.NewCollector(relockprom.WithNameClass(func(name string) string {
		switch {
		case strings.HasPrefix(name, "orders:"):
			return "orders"
		case strings.HasPrefix(name, "carts:"):
			return "carts"
		default:
			return "other"
		}
	}))
	if err != nil {
		log.Fatal(err)
	}
	registry.MustRegister(collector)
	locks, err := relock.New(rdb, relock.WithHooks(collector.Hooks()))
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	for _, name := range []string{"orders:42", "orders:43", "carts:7"} {
		locks.Mutex(name).Lock(context.Background())
	}
	show(registry)
	// Output:
	// relock_acquisitions_total{class="carts",kind="mutex",result="acquired"} 1
	// relock_acquisitions_total{class="orders",kind="mutex",result="acquired"} 2
	// relock_held{class="carts",kind="mutex"} 1
	// relock_held{class="orders",kind="mutex"} 2
}

// The snippets of README.md. TestReadme_CodeCompiles holds the two together.

func _() { // a whole service
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	collector, err := relockprom.NewCollector()
	if err != nil {
		log.Fatal(err)
	}
	prometheus.MustRegister(collector)
	locks, err := relock.New(rdb, relock.WithHooks(collector.Hooks()))
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	http.Handle("/metrics", promhttp.Handler())
	log.Fatal(http.ListenAndServe(":8080", nil))
}

func _(rdb *redis.Client, collector *relockprom.Collector, logger *slog.Logger) (*relock.Client, error) {
	hooks := relock.JoinHooks(collector.Hooks(), relock.LogHooks(logger))
	return relock.New(rdb, relock.WithHooks(hooks))
}

func _(rdbA, rdbB *redis.Client, locks map[string]*relock.Client) error {
	for server, rdb := range map[string]*redis.Client{"a": rdbA, "b": rdbB} {
		collector, err := relockprom.NewCollector()
		if err != nil {
			return err
		}
		prometheus.WrapRegistererWith(prometheus.Labels{"redis": server}, prometheus.DefaultRegisterer).MustRegister(collector)
		locks[server], err = relock.New(rdb, relock.WithHooks(collector.Hooks()))
		if err != nil {
			return err
		}
	}
	return nil
}
