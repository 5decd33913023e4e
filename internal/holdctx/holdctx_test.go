package holdctx

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/relock-go/relock/internal/keys"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hold is one that is lost when it is checked, if that is due.
type hold struct {
	checks int
	due    func()
}

func (h *hold) Check() {
	h.checks++
	if h.due != nil {
		h.due()
	}
}

type plainKey struct{}

var errOver = errors.New("over")

// derived returns contexts of holds of their own, each derived from the one before.
func derived(t *testing.T, n int) []*Context {
	all := make([]*Context, n)
	ctx := t.Context()
	for i := range all {
		all[i] = New(ctx, new(hold), new(keys.Set))
		ctx = context.WithValue(all[i], plainKey{}, i)
	}
	return all
}

func TestAContextOfAHoldEndsWithItsParentOrByItself(t *testing.T) {
	for name, ends := range map[string]func(parent context.CancelCauseFunc, x *Context){
		"with its parent": func(parent context.CancelCauseFunc, _ *Context) { parent(errOver) },
		"by itself":       func(_ context.CancelCauseFunc, x *Context) { x.End(errOver) },
	} {
		t.Run(name, func(t *testing.T) {
			parent, stop := context.WithCancelCause(t.Context())
			defer stop(nil)
			x := New(parent, new(hold), new(keys.Set))
			require.NoError(t, x.Err())
			ends(stop, x)
			<-x.Done()
			require.ErrorIs(t, x.Err(), context.Canceled)
			require.Equal(t, errOver, context.Cause(x))
			x.End(errors.New("again"))
			require.Equal(t, errOver, context.Cause(x), "the first cause stays")
		})
	}
}

func TestAContextOfAHoldHasTheValuesOfItsParent(t *testing.T) {
	target := new(keys.Set)
	x := New(context.WithValue(t.Context(), plainKey{}, "value"), new(hold), target)
	require.Equal(t, "value", x.Value(plainKey{}))
	require.Same(t, target, x.Target())
	x.End(nil)
}

func TestTheNearestContextOfAHoldIsFound(t *testing.T) {
	require.Nil(t, Nearest(t.Context()))
	all := derived(t, 3)
	defer all[0].End(nil)
	require.Nil(t, all[0].Above())
	for i, x := range all {
		require.Same(t, x, Nearest(x))
		below, stop := context.WithCancel(x)
		require.Same(t, x, Nearest(below))
		stop()
		if i > 0 {
			require.Same(t, all[i-1], x.Above())
		}
	}
}

// The watchdog may not have run yet, as after the machine was suspended.
func TestErrLosesAHoldFirstThatIsOver(t *testing.T) {
	h := new(hold)
	x := New(t.Context(), h, new(keys.Set))
	require.NoError(t, x.Err())
	h.due = func() { x.End(errOver) }
	require.ErrorIs(t, x.Err(), context.Canceled)
	require.Equal(t, errOver, context.Cause(x))
}

func TestErrLosesTheHoldsAboveToo(t *testing.T) {
	all := derived(t, 3)
	all[0].hold.(*hold).due = func() { all[0].End(errOver) }
	require.ErrorIs(t, all[2].Err(), context.Canceled)
	require.Equal(t, errOver, context.Cause(all[2]))
	for i, x := range all {
		require.Positive(t, x.hold.(*hold).checks, i)
	}
}

func TestAllContextsUpToAnotherEnd(t *testing.T) {
	for up := -1; up < 3; up++ {
		t.Run(fmt.Sprint(up), func(t *testing.T) {
			all := derived(t, 4)
			defer all[0].End(nil)
			var above *Context
			if up >= 0 {
				above = all[up]
			}
			all[3].EndUpTo(above, errOver)
			for i, x := range all {
				require.Equal(t, i > up, x.Context.Err() != nil, i)
			}
		})
	}
}

// contexts returns so many that are in s, which end when the test is over.
func contexts(t *testing.T, s *Set, n int) []*Context {
	all := make([]*Context, n)
	for i := range all {
		all[i] = New(t.Context(), new(hold), new(keys.Set))
		s.Add(all[i])
	}
	t.Cleanup(func() {
		for _, x := range all {
			x.End(nil)
		}
	})
	return all
}

func TestAContextThatEndsIsForgottenLongBeforeItsHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Set
		all := contexts(t, &s, 3)
		require.Equal(t, 3, s.Len())
		all[1].End(errOver)
		synctest.Wait()
		require.Equal(t, 2, s.Len())
		require.ElementsMatch(t, []*Context{all[0], all[2]}, s.TakeAll())
		require.Zero(t, s.Len())
	})
}

func TestOneIsForgottenOnce(t *testing.T) {
	var s Set
	all := contexts(t, &s, 3)
	for range 2 {
		s.Forget(all[0])
		require.ElementsMatch(t, all[1:], s.all)
	}
	require.Len(t, s.TakeAll(), 2)
	s.Forget(all[1]) // it is none of them any more
	require.Zero(t, s.Len())
	require.Empty(t, s.TakeAll())
}

func TestThoseAreTakenThatAreAgreedTo(t *testing.T) {
	for wanted := range 1 << 4 {
		var s Set
		all := contexts(t, &s, 4)
		var take, keep []*Context
		for i, x := range all {
			if wanted>>i&1 == 1 {
				take = append(take, x)
			} else {
				keep = append(keep, x)
			}
		}
		require.ElementsMatch(t, take, s.Take(func(x *Context) bool { return slices.Contains(take, x) }))
		require.ElementsMatch(t, keep, s.all)
		for _, x := range keep { // each is found where it is now
			s.Forget(x)
		}
		require.Zero(t, s.Len())
		require.NotContains(t, s.all[:cap(s.all)], all[0], "what is gone is kept alive")
	}
}

// Whatever comes and goes, the set is what a plain list says.
func TestASetIsTheContextsThatWereAddedAndHaveNotGone(t *testing.T) {
	var s Set
	var want []*Context
	for range 2000 {
		switch n := rand.IntN(10); {
		case n < 6:
			x := New(t.Context(), new(hold), new(keys.Set))
			t.Cleanup(func() { x.End(nil) })
			s.Add(x)
			want = append(want, x)
		case n < 9 && len(want) > 0:
			i := rand.IntN(len(want))
			s.Forget(want[i])
			want = slices.Delete(want, i, i+1)
		default:
			half := make(map[*Context]bool)
			for _, x := range want {
				half[x] = rand.IntN(2) == 0
			}
			require.ElementsMatch(t, slices.DeleteFunc(slices.Clone(want), func(x *Context) bool { return !half[x] }),
				s.Take(func(x *Context) bool { return half[x] }))
			want = slices.DeleteFunc(want, func(x *Context) bool { return half[x] })
		}
		require.ElementsMatch(t, want, s.all)
	}
}
