//go:build !race

package redistest

// atOnce is how many parallel tests run for each processor. They wait most of the time, for a server, a lease, or a lost
// answer.
const atOnce = 4
