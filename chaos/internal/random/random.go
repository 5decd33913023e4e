// Package random makes the random numbers of a run. All of them come from the one seed that
// a run prints, so that the same seed decides the same again.
package random

import "math/rand/v2"

// New returns the random numbers of one of the things that a seed decides about: of a worker,
// of a round, of a fault. What names it, by numbers, and each has numbers of its own: so none
// depends on how many another has drawn before.
func New(seed uint64, what ...uint64) *rand.Rand {
	h := seed
	for _, n := range what {
		h = (h ^ n) * 0x9e3779b97f4a7c15
		h ^= h >> 29
	}
	return rand.New(rand.NewPCG(seed, h))
}
