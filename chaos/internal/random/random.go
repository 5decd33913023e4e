// Package random makes the random numbers of a run. All of them come from the one seed that
// a run prints, so that the same seed decides the same again.
package random

import "math/rand/v2"

// New returns the random numbers for one purpose, such as a worker, a round, or a fault. what identifies the purpose. Each
// purpose has its own sequence, so it does not depend on how many numbers another has drawn.
func New(seed uint64, what ...uint64) *rand.Rand {
	h := seed
	for _, n := range what {
		h = (h ^ n) * 0x9e3779b97f4a7c15
		h ^= h >> 29
	}
	return rand.New(rand.NewPCG(seed, h))
}
