//go:build race

package redistest

// atOnce is less with the race detector, which needs processor time. Tests with a time limit have to get to run.
const atOnce = 3
