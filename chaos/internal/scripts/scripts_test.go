package scripts

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestScripts_EveryVerbHasItsOwn(t *testing.T) {
	found, err := Find()
	require.NoError(t, err)
	require.Len(t, found, 7)
	for _, verb := range []Verb{Acquire, Reenter, Renew, Release, Poll, Handoff, Rename} {
		require.Contains(t, found, verb)
	}
}
