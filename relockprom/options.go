package relockprom

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/relock-go/relock"
)

// Option is an option of [NewCollector].
type Option func(*settings) error

type settings struct {
	classOf func(name string) string
	buckets Buckets
	native  bool
}

// Buckets are the upper bounds of the buckets of the histograms, in seconds. Each list must be in
// increasing order. For an empty list the default applies.
type Buckets struct {
	Wait  []float64 // of relock_wait_seconds. Default: 0.0005 to 60
	Hold  []float64 // of relock_hold_seconds. Default: 0.001 to 3600
	Renew []float64 // of relock_renew_seconds. Default: 0.0005 to 10
}

var defaultBuckets = Buckets{
	Wait:  []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
	Hold:  []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 900, 3600},
	Renew: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
}

// WithNameClass adds the label class to every metric. Its value is the result of classOf for the name
// of the lock, which is Event.Name of relock: without the prefix, and for a MultiMutex all names joined
// by commas. Default: no such label.
//
// Return few classes: "orders" and "carts", not "orders:42". Each class costs 14 series (a semaphore
// 15) and the buckets of its histograms, for each kind of lock and each side of an RWMutex, in each
// process. After the first 100 classes, all later ones are counted together as "other" until the
// process ends.
//
// classOf is called for each event, on the goroutine of the lock. It must be quick and safe for
// concurrent use, and must always return the same class for a name, otherwise the gauges do not return
// to 0. If classOf panics, that is a panic in a hook.
func WithNameClass(classOf func(name string) string) Option {
	return func(s *settings) error {
		if classOf == nil {
			return fmt.Errorf("%w: WithNameClass: the function is nil", relock.ErrInvalidOption)
		}
		s.classOf = classOf
		return nil
	}
}

// WithBuckets sets the buckets of the histograms. Each bucket costs one series for each combination of
// labels of its histogram.
func WithBuckets(b Buckets) Option {
	return func(s *settings) error {
		for _, list := range []struct {
			name    string
			own     []float64
			setting *[]float64
		}{
			{"Wait", b.Wait, &s.buckets.Wait},
			{"Hold", b.Hold, &s.buckets.Hold},
			{"Renew", b.Renew, &s.buckets.Renew},
		} {
			if err := rising(list.own); err != nil {
				return fmt.Errorf("%w: WithBuckets: %s: %w", relock.ErrInvalidOption, list.name, err)
			}
			if len(list.own) > 0 {
				*list.setting = slices.Clone(list.own) // the histograms come to be later
			}
		}
		return nil
	}
}

// WithNativeHistograms adds native histograms, with at most 100 buckets, each at most 10 % wide. A
// Prometheus that scrapes native histograms uses them in place of the classic ones, unless it is
// configured to scrape both. For other servers nothing changes. Default: classic histograms only.
func WithNativeHistograms() Option {
	return func(s *settings) error {
		s.native = true
		return nil
	}
}

// settingsOf applies opts to the defaults. The error says which option cannot be.
func settingsOf(opts []Option) (settings, error) {
	s := settings{buckets: defaultBuckets}
	for i, opt := range opts {
		if opt == nil {
			return settings{}, fmt.Errorf("relockprom: %w: option %d of %d is nil", relock.ErrInvalidOption, i+1, len(opts))
		}
		if err := opt(&s); err != nil {
			return settings{}, fmt.Errorf("relockprom: %w", err)
		}
	}
	return s, nil
}

// rising returns where a list of bounds does not rise.
func rising(bounds []float64) error {
	for i, bound := range bounds {
		if math.IsNaN(bound) {
			return fmt.Errorf("bound %d is not a number", i+1)
		}
		if i > 0 && cmp.Compare(bounds[i-1], bound) >= 0 {
			return fmt.Errorf("bounds not in ascending order: %v before %v", bounds[i-1], bound)
		}
	}
	return nil
}
