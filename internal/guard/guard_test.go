package guard_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/guard"
)

func guarded(f func() error) (err error) {
	defer guard.Recover(&err)
	return f()
}

type client struct{ channels map[string]bool }

func (c *client) subscribe() { c.channels["a"] = true }

func TestGuard_PanicIsAnErrorWithWhatAndWhere(t *testing.T) {
	for what, f := range map[string]func(){
		"the Redis client panicked in github.com/relock-go/relock/internal/guard_test.TestGuard_PanicIsAnErrorWithWhatAndWhere.func1: no channel": func() { panic("no channel") },
		"guard_test.(*client).subscribe: assignment to entry in nil map":                                                                          new(client).subscribe,
		"guard_test.(*client).subscribe: runtime error: invalid memory address":                                                                   (*client)(nil).subscribe,
	} {
		err := guarded(func() error { f(); return nil })
		var p *guard.Panic
		require.ErrorAs(t, err, &p)
		require.ErrorContains(t, err, what)
	}
}

func TestGuard_WithoutAPanicReturnsTheCallsError(t *testing.T) {
	require.NoError(t, guarded(func() error { return nil }))
	own := errors.New("own")
	require.Equal(t, own, guarded(func() error { return own }))
}
