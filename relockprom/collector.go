package relockprom

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Collector counts what its [Collector.Hooks] are told of locks, and is the prometheus.Collector of
// that. One serves any number of relock Clients, which it adds up; it is safe for concurrent use.
type Collector struct {
	classOf  func(name string) string
	families *families

	mu      sync.RWMutex
	groups  map[labels]*group
	classes map[string]bool // those in use
}

// NewCollector returns a collector that has counted nothing yet. Register it, and give its Hooks to
// relock.
//
// It does not block. Errors: relock.ErrInvalidOption, which says which option cannot be.
func NewCollector(opts ...Option) (*Collector, error) {
	s, err := settingsOf(opts)
	if err != nil {
		return nil, err
	}
	return &Collector{
		classOf:  s.classOf,
		families: newFamilies(s),
		groups:   make(map[labels]*group),
		classes:  make(map[string]bool),
	}, nil
}

// Describe is for the prometheus.Registerer.
func (c *Collector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, family := range c.families.all() {
		family.Describe(descriptions)
	}
}

// Collect is for the prometheus.Gatherer. It does not block, nor does it ask Redis.
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	for _, family := range c.families.all() {
		family.Collect(metrics)
	}
}
