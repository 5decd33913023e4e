//go:build race

package redistest

// atOnce is less with the race detector: the processors have more to do, and what waits for
// an answer in good time must not be kept from running.
const atOnce = 3
