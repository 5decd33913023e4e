package relockgocron_test

import (
	"testing"

	"github.com/relock-go/relock/internal/pagetest"
)

func TestReadme_CodeCompiles(t *testing.T) {
	pagetest.RequireCode(t, "README.md", "go", "example/main.go", "example_test.go")
}
