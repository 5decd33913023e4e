package relock

import (
	"testing"

	"github.com/relock-go/relock/internal/redistest"
)

func TestMain(m *testing.M) {
	pipelinedByDefault = !redistest.WithoutPipelining()
	redistest.Main(m)
}
