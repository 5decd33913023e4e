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

func TestVerdict_OfAnErrorReplyIsByItsFirstWord(t *testing.T) {
	for words, means := range redistest.ErrorReplies {
		require.Equal(t, meant(means), judge(replyError(words)), words)
		require.Equal(t, meant(means), judge(fmt.Errorf("wrapped: %w", replyError(words))), words)
	}
}

// The types that go-redis has for some error replies change nothing.
func TestVerdict_OfAnErrorReplyIsTheSameFromAServer(t *testing.T) {
	relay := redistest.NewRelay(t, redistest.Mini(t).Addr)
	rdb := redis.NewClient(&redis.Options{Addr: relay.Addr, MaxRetries: -1})
	t.Cleanup(func() { rdb.Close() })
	for words, means := range redistest.ErrorReplies {
		rule := relay.ReplyWith("-"+words+"\r\n", redistest.Scripts)
		cmd := newCall(t.Context(), idle, false, []any{"key"}, nil)
		err := rdb.Process(t.Context(), cmd)
		rule.Wait(t)
		require.Equal(t, meant(means), judge(err), "%T: %v", err, err)
	}
}

func TestVerdict_ScriptThatReadsFirstHasNotBegunOnAMovedKey(t *testing.T) {
	looks, does := &Script{LooksFirst: true}, &Script{}
	for server, words := range map[string]string{
		"Redis 6.2": "ERR Error running script (call to f_6b): @user_script:197: @user_script: 197: Lua script attempted to access a non local key in a cluster node",
		"Redis 7.0": "ERR Script attempted to access a non local key in a cluster node script: 06, on @user_script:197.",
		"Valkey 9":  "ERR Attempted to access a non local key in a cluster node script: on @user_script:339.",
		"Redis 8.2": "ERR Unable to execute command 'exists' in script because undeclared keys were accessed during rehashing of the slot script: 06, on @user_script:197.",
	} {
		err := fmt.Errorf("wrapped: %w", replyError(words))
		require.Equal(t, transient, looks.judge(err), server)
		require.Equal(t, halfway, does.judge(err), server)
		require.True(t, SlotMoves(err), server)
	}
}

// timeout is an error of the network that is one.
type timeout struct{}

func (timeout) Error() string   { return "i/o timeout" }
func (timeout) Timeout() bool   { return true }
func (timeout) Temporary() bool { return true }

func TestVerdict_OfAConnectionErrorIsByWhetherAnythingWasSent(t *testing.T) {
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for _, c := range []struct {
		err  error
		want verdict
	}{
		{nil, fine},
		{dial, transient},
		{fmt.Errorf("wrapped: %w", dial), transient},
		{&net.OpError{Op: "dial", Net: "tcp", Err: timeout{}}, transient},
		{redis.ErrPoolTimeout, transient},
		{redis.ErrPoolExhausted, transient},
		{fmt.Errorf("wrapped: %w", redis.ErrPoolTimeout), transient},
		{redis.ErrClosed, forbidden},
		{&net.OpError{Op: "read", Net: "tcp", Err: timeout{}}, unknown},
		{&net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}, unknown},
		{&net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}, unknown},
		{timeout{}, unknown},
		{io.EOF, unknown},
		{io.ErrUnexpectedEOF, unknown},
		{net.ErrClosed, unknown},
		{context.Canceled, unknown},
		{context.DeadlineExceeded, unknown},
		{lockerr.ErrNoAnswer, unknown},
		{errors.New("anything else"), unknown},
		{errors.New("READONLY, says what is not the server"), unknown},
	} {
		require.Equal(t, c.want, judge(c.err), "%T: %v", c.err, c.err)
	}
}

func TestVerdict_IsConsistent(t *testing.T) {
	for _, v := range []verdict{fine, transient, refused, forbidden, unknown, halfway} {
		require.False(t, v.resend && v.permanent, "%+v", v)
		require.False(t, v.answered && (v.notExecuted || v.resend || v.permanent), "%+v", v)
	}
	require.False(t, unknown.notExecuted)
	require.False(t, halfway.notExecuted)
	require.False(t, halfway.resend, "the same script would go wrong again")
}

func TestScript_ForgottenOneIsSentInFull(t *testing.T) {
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
		v := judgeReply(words)
		require.False(t, v.answered)
		require.False(t, v.resend && !v.notExecuted, "what ran goes wrong again")
		require.Equal(t, v, judge(fmt.Errorf("wrapped: %w", replyError(words))))
		require.Equal(t, v, judgeReply(words+" and so on"))
		require.Equal(t, halfway, judgeReply("x"+words))
		if !strings.HasPrefix(words, "ERR ") {
			require.Equal(t, v, judgeReply("ERR "+words), "some servers put it before everything")
		}
	})
}
