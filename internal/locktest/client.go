package locktest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/goid"
	"github.com/relock-go/relock/internal/inside"
	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/undo"
)

// A NamedMutex says what it locks.
type NamedMutex interface {
	Mutex
	Name() string
}

// FieldOf is the name that the calling goroutine acquires by.
func FieldOf(c interface{ ID() string }) string { return fmt.Sprintf("%s:%d", c.ID(), goid.Get()) }

// What follows looks into clients: c is a *relock.Client, or a *relock.Mutex for the client that it is of.

// NamesOf returns how many names c has in memory.
func NamesOf(c any) int { return inside.ClientOf(c).Names() }

// Settled reports whether c does nothing in the background.
func Settled(c any) bool {
	return inside.ClientOf(c).Goroutines.Len() == 1 // it watches the clocks
}

// LearnedOf returns what the client of m has learned of its key: who was last told to hold it, and since when
// Redis does not answer.
func LearnedOf(m any) (holder string, out inside.Outage) { return inside.OfMutex(m).Learned() }

// Undo has the client of m release it for field in the background.
func Undo(m any, until clock.Instant, field string) {
	of := inside.OfMutex(m)
	inside.ClientOf(m).Undo(of.Protocol, undo.Name{Keys: of.Keys, Until: until}, field)
}

// Retire gives c a new identity, as an unknown outcome does.
func Retire(c any) {
	identities := inside.ClientOf(c).Identities
	identities.Retire(identities.Current())
}

// WaitersOn counts the owners of this process that wait for key, the one that talks to
// Redis included.
func WaitersOn(c any, key string) (n int) {
	for _, h := range inside.HoldsOn(c, key) {
		if h.Waiting {
			n++
		}
	}
	return n
}

// Listening reports whether a message about key would reach the waiters of c.
func Listening(c any, key string) bool {
	return slices.ContainsFunc(inside.HoldsOn(c, key), func(h inside.Hold) bool { return h.Listening })
}

// AwaitWaiters waits until n owners of this process wait for key.
func AwaitWaiters(t *testing.T, c any, key string, n int) {
	t.Helper()
	redistest.Eventually(t, fmt.Sprintf("%d waiters", n), func() bool { return WaitersOn(c, key) == n })
}

// AwaitPlaces waits until c has been told of n places in the line of key. Redis has them before: a waiter that
// gives up in between does not know if it has one.
func AwaitPlaces(t *testing.T, c any, key string, n int) {
	t.Helper()
	redistest.Eventually(t, fmt.Sprintf("%d places", n), func() bool {
		for _, h := range inside.HoldsOn(c, key) {
			return len(h.Line().Waiting()) == n
		}
		return n == 0
	})
}

// AwaitListening waits until a message about key would reach the waiters of c.
func AwaitListening(t *testing.T, c any, key string) {
	t.Helper()
	redistest.Eventually(t, "listening", func() bool { return Listening(c, key) })
}

// LineUp has n actors lock m of c one after another, tell turns when they hold it, and unlock it.
func LineUp(t *testing.T, c any, m NamedMutex, n int, turns chan<- int) []<-chan error {
	t.Helper()
	before := WaitersOn(c, m.Name())
	var done []<-chan error
	for i := range n {
		done = append(done, NewActor(t).Begin(func() error {
			if err := m.Lock(t.Context()); err != nil {
				return err
			}
			turns <- i
			return m.Unlock()
		}))
		AwaitWaiters(t, c, m.Name(), before+i+1)
	}
	return done
}

// HandOver unlocks m of c, which the caller holds, while another owner waits with the handle to.
func HandOver(t *testing.T, c any, m NamedMutex, to Mutex) {
	t.Helper()
	next := NewActor(t)
	granted := next.Lock(t.Context(), to)
	AwaitWaiters(t, c, m.Name(), 1)
	RequireUnlocked(t, m)
	require.NoError(t, OutcomeOf(t, granted))
	next.Unlocks(t, to)
}
