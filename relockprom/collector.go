package relockprom

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Collector is a prometheus.Collector that counts the events of its [Collector.Hooks]. One Collector
// can serve any number of relock Clients, and adds them up. It is safe for concurrent use.
type Collector struct {
	classOf  func(name string) string
	families *families

	mu      sync.RWMutex
	groups  map[labels]*group
	classes map[string]bool // those in use
}

// NewCollector returns a new collector. Register it, and pass its Hooks to relock.
//
// NewCollector does not block. Errors: relock.ErrInvalidOption, which names the invalid option.
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

// Describe implements prometheus.Collector.
func (c *Collector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, family := range c.families.all() {
		family.Describe(descriptions)
	}
}

// Collect implements prometheus.Collector. It does not block, and sends nothing to Redis.
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	for _, family := range c.families.all() {
		family.Collect(metrics)
	}
}
