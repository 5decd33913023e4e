package session

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/relock-go/relock/internal/acquire"
	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/gate"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/wake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hub is one that counts how often it was closed. No message ever comes.
type hub struct {
	*wake.Hub
	closed int
}

func (h *hub) Close() {
	h.closed++
	h.Hub.Close()
}

// hold is one that ends as the test says.
type hold struct {
	acquire.Hold
	owner keys.Owner
	field string // by which it holds its keys

	looked int // at its clocks
	ended  func(ctx context.Context, failed func(error))
}

func (h *hold) Owner() keys.Owner                             { return h.owner }
func (h *hold) ClocksMoved()                                  { h.looked++ }
func (h *hold) HoldsAs(field string, _ clock.Instant) bool    { return h.field == field }
func (h *hold) Stands() (string, []acquire.Place)             { return h.field, nil }
func (h *hold) Excuse(int64)                                  {}
func (h *hold) Close(ctx context.Context, failed func(error)) { h.ended(ctx, failed) }
func (h *hold) holds(s *Session, key string) *hold            { return h.at(s, gate.ID{Key: key}) }
func (h *hold) at(s *Session, id gate.ID) *hold               { s.Registry.Enter(id, "channel").Add(h); return h }

// heard has a hold end at once, and Redis hear of it.
func heard(_ context.Context, failed func(error)) { failed(nil) }

// open returns a session without a Redis.
func open(t *testing.T) (*Session, *hub) {
	h := &hub{Hub: wake.NewHub(nil, wake.Config{CloseTimeout: time.Second})}
	s := New(nil, h, Options{TTL: 30 * time.Second}, clock.System)
	t.Cleanup(func() { _ = s.Close() })
	return s, h
}

func TestCloseEndsEachHoldOnceAndReturnsTheSameEachTime(t *testing.T) {
	s, h := open(t)
	ends := 0
	refusal := errors.New("NOPERM")
	(&hold{owner: keys.Owner{Fixed: "a"}, ended: func(_ context.Context, failed func(error)) {
		ends++
		require.True(t, s.Closed(), "those that wait are told before a hold is given back")
		failed(errors.New("not told yet"))
		failed(refusal)
	}}).holds(s, "one").holds(s, "two")
	(&hold{owner: keys.Owner{Fixed: "b"}, ended: heard}).holds(s, "three")
	require.False(t, s.Closed())
	first := s.Close()
	require.EqualError(t, first, "NOPERM", "only what became of it in the end, once for both of its keys")
	require.ErrorIs(t, first, refusal)
	require.Equal(t, first, s.Close())
	require.Equal(t, 1, ends)
	require.Equal(t, 1, h.closed)
	require.ErrorIs(t, context.Cause(s.Background), lockerr.ErrClosed)
}

func TestCloseOfASessionThatHoldsNothingHasNoError(t *testing.T) {
	s, _ := open(t)
	(&hold{owner: keys.Owner{Fixed: "a"}, ended: heard}).holds(s, "one")
	require.NoError(t, s.Close())
}

func TestCloseNamesTheHoldsThatRedisHasNotHeardOfWhenItsTimeIsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := open(t)
		silence := errors.New("Redis does not answer")
		(&hold{owner: keys.Owner{Fixed: "a"}, ended: func(ctx context.Context, failed func(error)) {
			failed(silence)
			<-ctx.Done()
			require.ErrorContains(t, context.Cause(ctx), "no answer from Redis within")
		}}).holds(s, "one")
		began := time.Now()
		require.ErrorIs(t, s.Close(), silence)
		require.Equal(t, CloseTimeout-lastWords, time.Since(began), "there is time left to say so")
	})
}

func TestCloseGivesWorkInTheBackgroundItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := open(t)
		done := false
		s.Goroutines.Go(func() {
			select {
			case <-time.After(time.Second):
				done = true
			case <-s.Background.Done():
			}
		})
		require.NoError(t, s.Close())
		require.True(t, done, "what is being undone is undone before the background ends")
	})
}

func TestEveryHoldLooksAtItsDeadlineOnceWhenTheClocksMoveApart(t *testing.T) {
	s, _ := open(t)
	both := (&hold{owner: keys.Owner{Fixed: "a"}, ended: heard}).holds(s, "one").holds(s, "two")
	other := (&hold{owner: keys.Owner{Fixed: "b"}, ended: heard}).holds(s, "one")
	s.clocksMoved()
	require.Equal(t, 1, both.looked, "though it has two keys")
	require.Equal(t, 1, other.looked)
}

func TestTheHolderOfAFieldIsFoundByItsOwnerAndOnItsSide(t *testing.T) {
	s, _ := open(t)
	set := &keys.Set{Keys: []string{"one"}}
	mine := (&hold{owner: keys.Owner{Fixed: "a"}, field: "uuid:a", ended: heard}).holds(s, "one")
	require.Equal(t, Hold(mine), s.Holder(set, 0, "uuid:a", clock.Instant{}))
	require.Nil(t, s.Holder(set, 0, "earlier:a", clock.Instant{}), "it held by that name before, if ever")
	require.Nil(t, s.Holder(set, 0, "uuid:b", clock.Instant{}))
	require.Nil(t, s.Holder(&keys.Set{Keys: []string{"two"}}, 0, "uuid:a", clock.Instant{}))

	sides := &keys.Set{Keys: []string{"sided"}, Side: keys.Reading}
	writer := (&hold{owner: keys.Owner{Fixed: "w"}, field: "uuid:w:write", ended: heard}).at(s, gate.ID{Key: "sided", Side: keys.Writing})
	require.Equal(t, Hold(writer), s.Holder(sides, 0, "uuid:w:write", clock.Instant{}), "a reader finds the writer that keeps it out")
}

func TestTheUuidsInUseAreTheCurrentOneAndThoseThatHoldsStillHave(t *testing.T) {
	s, _ := open(t)
	require.Empty(t, s.uuidsInUse(), "it neither holds nor waits")
	current := string(*s.Identities.Current())
	(&hold{owner: keys.Owner{Fixed: "a"}, field: current + ":a", ended: heard}).holds(s, "one")
	require.Equal(t, []string{current}, s.uuidsInUse())
	(&hold{owner: keys.Owner{Fixed: "b"}, field: "older:b", ended: heard}).holds(s, "two")
	require.ElementsMatch(t, []string{current, "older"}, s.uuidsInUse())
	require.Equal(t, current, s.uuidsInUse()[0], "by which it asks next")
}
