package play

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/chaos/history"
)

func TestPlay_ReportsAKeyWithoutExpiryOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := newServer(1, 0)
		require.NoError(t, err)
		defer s.mini.Close()
		p := &play{journal: &journal{began: time.Now()}, servers: []*server{s}}
		stop := p.watchExpiry()
		s.mini.HSet("lock", "owner", "1")
		s.mini.SetTTL("lock", time.Minute)
		time.Sleep(time.Second)
		require.Empty(t, p.journal.soFar())
		s.mini.HSet("eternal", "owner", "1")
		time.Sleep(time.Second)
		stop()
		reported := p.journal.soFar()
		require.Len(t, reported, 1)
		require.Equal(t, history.Left, reported[0].Kind)
		require.Equal(t, "on server 1, without expiry: eternal", reported[0].Note)
	})
}
