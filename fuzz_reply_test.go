package relock

import (
	"fmt"
	"strings"
	"testing"

	"github.com/relock-go/relock/internal/redisexec"
	"github.com/stretchr/testify/require"
)

// FuzzErrorReply checks that an error reply is judged by its first words alone.
func FuzzErrorReply(f *testing.F) {
	for words := range serverWords {
		f.Add(words)
	}
	f.Fuzz(func(t *testing.T, words string) {
		v := redisexec.JudgeReply(words)
		require.False(t, v.Answered)
		require.False(t, v.Resend && !v.NotExecuted, "what ran goes wrong again")
		require.Equal(t, v, redisexec.Judge(fmt.Errorf("wrapped: %w", replyError(words))))
		require.Equal(t, v, redisexec.JudgeReply(words+" and so on"))
		require.Equal(t, redisexec.Halfway, redisexec.JudgeReply("x"+words))
		if !strings.HasPrefix(words, "ERR ") {
			require.Equal(t, v, redisexec.JudgeReply("ERR "+words), "some servers put it before everything")
		}
	})
}
