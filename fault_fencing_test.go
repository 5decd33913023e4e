package relock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// tokenFence collects the tokens of one holder after the other.
type tokenFence struct {
	*faultBench
	last int64
}

// requireRise asserts that the holder has a higher token than the one before.
func (f *tokenFence) requireRise(owner *faultOwner, m *relock.Mutex) {
	f.t.Helper()
	token := owner.token(m)
	require.Greater(f.t, token, f.last)
	f.last = token
}

// token returns the owner's fencing token.
func (a *faultOwner) token(m *relock.Mutex) (token int64) {
	_ = a.do(func() error {
		token = m.FencingToken()
		return nil
	})
	return token
}

func TestTokens_RiseFromHolderToHolderWhateverIsLost(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		lease := relock.WithTTL(time.Minute) // no copies but the lost ones are to be in a hurry
		b := newFaultBench(t, backend.Addr, lease)
		b.m = b.mutex(relock.WithFencing(), lease)
		b.rival = b.rivals.Mutex(b.key, relock.WithFencing(), lease)
		f := &tokenFence{faultBench: b}
		for range 3 {
			b.relay.DropReply(b.runs(protocol.AcquireScript)).Times(2)
			lockOnce(b)
			f.requireRise(b.me, b.m)
			b.relay.DropReply(b.runs(protocol.ReenterScript))
			lockOnce(b)
			require.Equal(t, f.last, b.me.token(b.m), "re-entry keeps the token")
			unlockOnce(b)

			b.waiting = b.other.start(func() error { return b.m.Lock(b.ctx) })
			b.awaitContended()
			b.relay.DropReply(b.runs(protocol.RenameScript)).Times(2)
			unlockOnce(b)
			require.NoError(t, faultError(t, b.waiting))
			f.requireRise(b.other, b.m)

			b.relay.DropReply(b.runs(protocol.ReleaseScript))
			require.NoError(t, b.other.unlock(b.m))
			require.NoError(t, b.me.lock(b.ctx, b.rival))
			f.requireRise(b.me, b.rival)
			require.NoError(t, b.me.unlock(b.rival))
		}
	})
}

// A late copy of an acquisition mints a token that nobody has, between two that are in use.
func TestTokens_RiseOverADelayedCopy(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newFaultBench(t, backend.Addr)
		b.m = b.mutex(relock.WithFencing())
		f := &tokenFence{faultBench: b}
		held := b.relay.HoldBack(b.runs(protocol.AcquireScript))
		lockOnce(b)
		f.requireRise(b.me, b.m)
		b.deliver(held)
		require.Equal(t, f.last, b.me.token(b.m))
		state, err := b.m.State(b.ctx)
		require.NoError(t, err)
		require.GreaterOrEqual(t, state.FencingToken, f.last)
		unlockOnce(b)
		f.last = state.FencingToken
		lockOnce(b)
		f.requireRise(b.me, b.m)
		unlockOnce(b)
		b.requireGone()
	})
}
