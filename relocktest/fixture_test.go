package relocktest_test

import (
	"context"
	"fmt"
	"testing"
)

// exampleTest stands in for the *testing.T that an example does not have.
type exampleTest struct {
	testing.TB
	cleanups []func()
}

func startTest() *exampleTest { return &exampleTest{} }

func (t *exampleTest) Helper()                  {}
func (t *exampleTest) Context() context.Context { return context.Background() }
func (t *exampleTest) Cleanup(f func())         { t.cleanups = append(t.cleanups, f) }

func (t *exampleTest) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (t *exampleTest) Errorf(format string, args ...any) { fmt.Printf(format, args...) }

// end runs the cleanups, the last one first.
func (t *exampleTest) end() {
	for i := len(t.cleanups) - 1; i >= 0; i-- {
		t.cleanups[i]()
	}
}
