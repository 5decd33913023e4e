package relock

import (
	"testing"

	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// chronicle records what hooks are told.
type chronicle = locktest.Chronicle[Event, Hooks]

// resolved is s changed by opts.
func resolved(s settings, opts []MutexOption) settings {
	s.apply(opts)
	return s
}
