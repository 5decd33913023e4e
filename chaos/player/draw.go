package player

import (
	"math/rand/v2"
	"time"
)

// Drawer draws.
type Drawer struct{ *rand.Rand }

// Chance is true with the given probability.
func (d Drawer) Chance(p float64) bool { return d.Float64() < p }

// Between returns a random duration.
func (d Drawer) Between(least, most time.Duration) time.Duration {
	return least + time.Duration(d.Int64N(int64(most-least)+1))
}

// Pick returns one of some.
func Pick[T any](d Drawer, of ...T) T { return of[d.IntN(len(of))] }
