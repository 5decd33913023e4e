package goroutine_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/goroutine"
)

func guarded(f func() error) (err error) {
	defer goroutine.Recover(&err)
	return f()
}

type client struct{ channels map[string]bool }

func (c *client) subscribe() { c.channels["a"] = true }

func TestRecover_PanicIsAnErrorWithWhatAndWhere(t *testing.T) {
	for what, f := range map[string]func(){
		"the Redis client panicked in github.com/relock-go/relock/internal/goroutine_test.TestRecover_PanicIsAnErrorWithWhatAndWhere.func1: no channel": func() { panic("no channel") },
		"goroutine_test.(*client).subscribe: assignment to entry in nil map":                                                                            new(client).subscribe,
		"goroutine_test.(*client).subscribe: runtime error: invalid memory address":                                                                     (*client)(nil).subscribe,
	} {
		err := guarded(func() error { f(); return nil })
		var p *goroutine.Panic
		require.ErrorAs(t, err, &p)
		require.ErrorContains(t, err, what)
	}
}

func TestRecover_WithoutAPanicReturnsTheCallsError(t *testing.T) {
	require.NoError(t, guarded(func() error { return nil }))
	own := errors.New("own")
	require.Equal(t, own, guarded(func() error { return own }))
}
