// Package bubble runs a program inside bubbles of testing/synctest, where time is virtual.
//
// A bubble needs a *testing.T, which only package testing makes. So the program runs as a test
// run of one test: [Main] does what the main function that "go test" generates does.
package bubble

import (
	"fmt"
	"os"
	"testing"
	"testing/synctest"
)

// Main calls f, in which [Run] can be called, and ends the process: with what f returns, or with 2 if
// package testing did not run it. Flags of the program are to be parsed after [Flags].
func Main(f func(run Runner) int) {
	status := 2
	test := testing.InternalTest{Name: "sim", F: func(t *testing.T) {
		status = f(func(inside func()) { synctest.Test(t, func(*testing.T) { inside() }) })
		os.Exit(status) // what testing would print besides is of no use here
	}}
	testing.Main(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{test}, nil, nil)
	fmt.Fprintln(os.Stderr, "bubble: the run ended early")
	os.Exit(status)
}

// Flags registers the flags of package testing, without which it does not run.
func Flags() { testing.Init() }

// Runner calls a function in a bubble of its own, and returns when all goroutines of that have ended.
// If they cannot end any more, the process panics.
type Runner func(inside func())
