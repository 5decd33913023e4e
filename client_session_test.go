package relock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/wake"
)

// countedHub is a hub that counts how often it was closed. No message ever comes.
type countedHub struct {
	*wake.Hub
	closed int
}

func (h *countedHub) Close() {
	h.closed++
	h.Hub.Close()
}

// alone returns a session without a Redis.
func alone(t *testing.T) (*session, *countedHub) {
	h := &countedHub{Hub: wake.NewHub(nil, wake.Config{CloseTimeout: time.Second})}
	o := defaultSettings()
	s := newSession(nil, h, &o, clock.System)
	t.Cleanup(func() { _ = s.close() })
	return s, h
}

// releasing is a protocol whose release has the result that the test gives. Nothing else is to be called.
type releasing struct {
	protocol.Protocol
	release func(ctx context.Context) error
}

func (p releasing) Release(ctx context.Context, _ redisexec.CallOptions, _ *keys.Set, _ string, _ []int) (protocol.Released, redisexec.Outcome) {
	return protocol.Released{Ours: true}, redisexec.Outcome{Err: p.release(ctx)}
}

func answered(context.Context) error { return nil }

// wanted returns a hold of s that owner wants to have on names, whose release is what the test says.
func wanted(t *testing.T, s *session, k kind, release func(context.Context) error, owner string, names ...string) *hold {
	t.Helper()
	target := new(keys.Set)
	require.NoError(t, target.Init("", names))
	target.Side = k.side
	o := defaultSettings().settings
	o.apply(nil)
	k.lock, k.protocol = KindMulti, releasing{release: release}
	h := newHold(s, &k, keys.Owner{Fixed: owner}, target, &o, true)
	require.True(t, h.register())
	return h
}

// holds has h be held by the name field.
func (h *hold) holds(field string) *hold {
	h.receive(keys.Name{Identity: h.session.identities.Current(), Field: field}, h.session.now(), h.settings.TTL, 0)
	_, _ = h.open(openLock{settings: h.settings, target: h.target}, nil)
	return h
}

func TestClose_EndsEachHoldOnceAndReturnsTheSameEachTime(t *testing.T) {
	s, h := alone(t)
	ends := 0
	refusal := errors.New("NOPERM")
	wanted(t, s, kind{}, func(context.Context) error {
		ends++
		require.True(t, s.closed(), "waiters are notified before a hold is released")
		return refusal
	}, "a", "one", "two").holds("uuid:a")
	wanted(t, s, kind{}, answered, "b", "three").holds("uuid:b")
	require.False(t, s.closed())
	first := s.close()
	require.ErrorIs(t, first, refusal)
	require.NotContains(t, first.Error(), "\n", "once for both of its keys")
	require.NotContains(t, first.Error(), "no answer", "only what became of it in the end")
	require.Equal(t, first, s.close())
	require.Equal(t, 1, ends)
	require.Equal(t, 1, h.closed)
	require.ErrorIs(t, context.Cause(s.background), lockerr.ErrClosed)
}

func TestClose_OfASessionWithAnAnswerForEachHoldHasNoError(t *testing.T) {
	s, _ := alone(t)
	wanted(t, s, kind{}, answered, "a", "one").holds("uuid:a")
	require.NoError(t, s.close())
}

func TestClose_NamesTheHoldsWithoutAnAnswerWhenItsTimeIsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := alone(t)
		wanted(t, s, kind{}, func(ctx context.Context) error {
			<-ctx.Done()
			require.ErrorContains(t, context.Cause(ctx), "no answer from Redis within")
			return lockerr.Ended(ctx)
		}, "a", "one").holds("uuid:a")
		began := time.Now()
		require.ErrorContains(t, s.close(), "no answer from Redis within")
		require.Equal(t, closeTimeout-closeMargin, time.Since(began), "there is time left to say so")
	})
}

func TestClose_LeavesNothingOfAHoldThatIsUnlockedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := alone(t)
		answered := make(chan struct{})
		h := wanted(t, s, kind{}, func(context.Context) error {
			<-answered
			return nil
		}, "a", "one").holds("uuid:a")
		go func() { _ = s.close() }()
		synctest.Wait()
		require.ErrorIs(t, h.unlock(h.target, h.settings), ErrClosed)
		close(answered)
		require.NoError(t, s.close())
		require.Empty(t, s.registry.all())
	})
}

func TestClose_GivesWorkInTheBackgroundItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := alone(t)
		done := false
		s.goroutines.Go(func() {
			select {
			case <-time.After(time.Second):
				done = true
			case <-s.background.Done():
			}
		})
		require.NoError(t, s.close())
		require.True(t, done, "what is being undone is undone before the background ends")
	})
}

func TestSession_EveryHoldLooksAtItsDeadlineWhenTheClocksMoveApart(t *testing.T) {
	s, _ := alone(t)
	both := wanted(t, s, kind{}, answered, "a", "one", "two").holds("uuid:a")
	other := wanted(t, s, kind{}, answered, "b", "one").holds("uuid:b")
	for _, h := range []*hold{both, other} {
		h.mu.Lock()
		endsAt(&h.lease, s.now())
		h.mu.Unlock()
	}
	s.clocksMoved()
	require.ErrorIs(t, both.usable(), ErrLost)
	require.ErrorIs(t, other.usable(), ErrLost)
}

func TestSession_TheHolderOfAFieldIsFoundByItsOwnerAndOnItsSide(t *testing.T) {
	s, _ := alone(t)
	mine := wanted(t, s, kind{}, answered, "a", "one").holds("uuid:a")
	require.Same(t, mine, s.holder(mine.target, 0, "uuid:a", clock.Instant{}))
	require.Nil(t, s.holder(mine.target, 0, "earlier:a", clock.Instant{}), "it held by that name before, if ever")
	require.Nil(t, s.holder(mine.target, 0, "uuid:b", clock.Instant{}))
	require.Nil(t, s.holder(&keys.Set{Keys: []string{"two"}}, 0, "uuid:a", clock.Instant{}))

	writer := wanted(t, s, kind{side: keys.Writing}, answered, "w", "sided").holds("uuid:w:write")
	reading := &keys.Set{Keys: []string{"sided"}, Side: keys.Reading}
	require.Same(t, writer, s.holder(reading, 0, "uuid:w:write", clock.Instant{}), "a reader finds the writer that keeps it out")
}

func TestSession_TheUuidsInUseAreTheCurrentOneAndThoseThatHoldsStillHave(t *testing.T) {
	s, _ := alone(t)
	require.Empty(t, s.uuidsInUse(), "it neither holds nor waits")
	current := string(*s.identities.Current())
	wanted(t, s, kind{}, answered, "a", "one").holds(current + ":a")
	require.Equal(t, []string{current}, s.uuidsInUse())
	wanted(t, s, kind{}, answered, "b", "two").holds("older:b")
	require.ElementsMatch(t, []string{current, "older"}, s.uuidsInUse())
	require.Equal(t, current, s.uuidsInUse()[0], "by which it asks next")
}
