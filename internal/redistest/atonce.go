//go:build !race

package redistest

// atOnce is how many parallel tests run for each processor: most of their time they wait
// for a server, a lease, or an answer that does not come.
const atOnce = 4
