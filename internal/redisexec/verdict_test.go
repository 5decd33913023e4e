package redisexec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redistest"
)

// replyError is an error reply for which go-redis has no type of its own.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

func TestErrorRepliesAreJudgedByTheirFirstWord(t *testing.T) {
	for words, means := range redistest.ErrorReplies {
		require.Equal(t, meant(means), Judge(replyError(words)), words)
		require.Equal(t, meant(means), Judge(fmt.Errorf("wrapped: %w", replyError(words))), words)
	}
}

// The types that go-redis has for some error replies change nothing.
func TestErrorRepliesAreJudgedAlikeWhenTheyComeFromAServer(t *testing.T) {
	relay := redistest.NewRelay(t, redistest.Mini(t).Addr)
	rdb := redis.NewClient(&redis.Options{Addr: relay.Addr, MaxRetries: -1})
	t.Cleanup(func() { rdb.Close() })
	for words, means := range redistest.ErrorReplies {
		rule := relay.ReplyWith("-"+words+"\r\n", redistest.Scripts)
		cmd := NewCall(t.Context(), "evalsha", idle.Digest, []any{"key"}, nil)
		err := rdb.Process(t.Context(), cmd)
		rule.Wait(t)
		require.Equal(t, meant(means), Judge(err), "%T: %v", err, err)
	}
}

// timeout is an error of the network that is one.
type timeout struct{}

func (timeout) Error() string   { return "i/o timeout" }
func (timeout) Timeout() bool   { return true }
func (timeout) Temporary() bool { return true }

func TestErrorsOfTheWayToRedisAreJudgedByWhetherAnythingWasSent(t *testing.T) {
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for _, c := range []struct {
		err  error
		want Verdict
	}{
		{nil, Fine},
		{redis.Nil, Fine},
		{dial, Transient},
		{fmt.Errorf("wrapped: %w", dial), Transient},
		{&net.OpError{Op: "dial", Net: "tcp", Err: timeout{}}, Transient},
		{redis.ErrPoolTimeout, Transient},
		{redis.ErrPoolExhausted, Transient},
		{redis.ErrAutoPipelineTimeout, Transient},
		{redis.ErrAutoPipelineQueueFull, Transient},
		{fmt.Errorf("wrapped: %w", redis.ErrPoolTimeout), Transient},
		{redis.ErrClosed, Forbidden},
		{&net.OpError{Op: "read", Net: "tcp", Err: timeout{}}, Unknown},
		{&net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}, Unknown},
		{&net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}, Unknown},
		{timeout{}, Unknown},
		{io.EOF, Unknown},
		{io.ErrUnexpectedEOF, Unknown},
		{net.ErrClosed, Unknown},
		{context.Canceled, Unknown},
		{context.DeadlineExceeded, Unknown},
		{lockerr.NoAnswer, Unknown},
		{errors.New("anything else"), Unknown},
		{errors.New("READONLY, says what is not the server"), Unknown},
	} {
		require.Equal(t, c.want, Judge(c.err), "%T: %v", c.err, c.err)
	}
}

func TestVerdictsAreConsistent(t *testing.T) {
	for _, v := range []Verdict{Fine, Transient, Refused, Forbidden, Unknown, Halfway} {
		require.False(t, v.Resend && v.Permanent, "%+v", v)
		require.False(t, v.Answered && (v.NotExecuted || v.Resend || v.Permanent), "%+v", v)
	}
	require.False(t, Unknown.NotExecuted)
	require.False(t, Halfway.NotExecuted)
	require.False(t, Halfway.Resend, "the same script would go wrong again")
}

func TestAScriptThatTheServerForgotIsSentInFull(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	relay := redistest.NewRelay(t, server.Addr)
	rdb := clientOf(t, relay.Addr)
	x, key := executorOn(t, rdb), redistest.Key(t)
	run := func() {
		t.Helper()
		_, out := x.Run(t.Context(), once, counting, []any{key})
		require.NoError(t, out.Err)
		require.False(t, out.Ambiguous)
	}
	for range 2 {
		require.NoError(t, rdb.ScriptFlush(t.Context()).Err())
		relay.ResetLog()
		run()
		require.Equal(t, 2, relay.Count(runsOf(counting)))
		require.Equal(t, 1, relay.Executed(runsOf(counting)))
	}
	run()
	require.Equal(t, 3, relay.Count(runsOf(counting)), "now it is known")
	require.EqualValues(t, "3", rdb.Get(t.Context(), key).Val())
}

// FuzzErrorReply checks that an error reply is judged by its first words alone.
func FuzzErrorReply(f *testing.F) {
	for words := range redistest.ErrorReplies {
		f.Add(words)
	}
	f.Fuzz(func(t *testing.T, words string) {
		v := JudgeReply(words)
		require.False(t, v.Answered)
		require.False(t, v.Resend && !v.NotExecuted, "what ran goes wrong again")
		require.Equal(t, v, Judge(fmt.Errorf("wrapped: %w", replyError(words))))
		require.Equal(t, v, JudgeReply(words+" and so on"))
		require.Equal(t, Halfway, JudgeReply("x"+words))
		if !strings.HasPrefix(words, "ERR ") {
			require.Equal(t, v, JudgeReply("ERR "+words), "some servers put it before everything")
		}
	})
}
