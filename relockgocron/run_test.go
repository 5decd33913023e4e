package relockgocron

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGoid_IsFoundInTheStackTrace(t *testing.T) {
	here := goroutine()
	require.Regexp(t, `^[1-9][0-9]*$`, here)
	require.Equal(t, here, goroutine())
	there := make(chan string)
	go func() { there <- goroutine() }()
	require.NotEqual(t, here, <-there)
}
