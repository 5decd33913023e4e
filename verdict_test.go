package relock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// replyError is an error reply for which go-redis has no type of its own.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

// wrapped is how Redis before version 7 words what a script's command is refused with.
func wrapped(message string) string {
	return "ERR Error running script (call to f_6b1bf486c81ceb7edf3c093f4c48582e38c0e791): @user_script:1: @user_script: 1: -" + message
}

// serverWords are the error replies of Redis, as it words them, and what they mean.
var serverWords = map[string]redisexec.Verdict{
	"LOADING Redis is loading the dataset in memory":                                               redisexec.Transient,
	"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.":             redisexec.Transient,
	"CLUSTERDOWN The cluster is down":                                                              redisexec.Transient,
	"CLUSTERDOWN Hash slot not served":                                                             redisexec.Transient,
	"TRYAGAIN Multiple keys request during rehashing of slot":                                      redisexec.Transient,
	"NOREPLICAS Not enough good replicas to write.":                                                redisexec.Transient,
	"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.":       redisexec.Transient,
	"READONLY You can't write against a read only replica.":                                        redisexec.Transient,
	"READONLY You can't write against a read only replica. script: 3f, on @user_script:1.":         redisexec.Transient,
	"NOSCRIPT No matching script. Please use EVAL.":                                                redisexec.Transient,
	"ERR max number of clients reached":                                                            redisexec.Transient,
	"ERR max number of clients + cluster connections reached":                                      redisexec.Transient,
	"OOM command not allowed when used memory > 'maxmemory'.":                                      redisexec.Refused,
	"OOM command not allowed when used memory > 'maxmemory'. script: 3f, on @user_script:1.":       redisexec.Refused,
	"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist":      redisexec.Refused,
	"MOVED 3999 127.0.0.1:6381":                                                                    redisexec.Refused,
	"ASK 3999 127.0.0.1:6381":                                                                      redisexec.Refused,
	"NOAUTH Authentication required.":                                                              redisexec.Forbidden,
	"WRONGPASS invalid username-password pair or user is disabled.":                                redisexec.Forbidden,
	"NOPERM this user has no permissions to run the 'evalsha' command":                             redisexec.Forbidden,
	"NOPERM this user has no permissions to access one of the keys used as arguments":              redisexec.Forbidden,
	"DENIED Redis is running in protected mode because protected mode is enabled":                  redisexec.Forbidden,
	"CROSSSLOT Keys in request don't hash to the same slot":                                        redisexec.Forbidden,
	"ERR unknown command 'evalsha', with args beginning with: '3f'":                                redisexec.Forbidden,
	"NOPERM ACL failure in script: User app has no permissions to run the 'set' command":           redisexec.Halfway,
	"BUSYKEY Target key name already exists.":                                                      redisexec.Halfway,
	"WRONGTYPE Operation against a key holding the wrong kind of value":                            redisexec.Halfway,
	"ERR The user executing the script can't run this command or subcommand script: 3f, on @u:1.":  redisexec.Halfway,
	"ERR Script attempted to access a non local key in a cluster node":                             redisexec.Halfway,
	"ERR Error compiling script (new function): user_script:1: unexpected symbol":                  redisexec.Halfway,
	"ERR value is not an integer or out of range":                                                  redisexec.Halfway,
	"ERR user_script:1: Script attempted to access nonexistent global variable 'oops' script: 3f.": redisexec.Halfway,
	"UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)": redisexec.Halfway,
	"": redisexec.Halfway,
	wrapped("READONLY You can't write against a read only replica."):                          redisexec.Transient,
	wrapped("OOM command not allowed when used memory > 'maxmemory'."):                        redisexec.Refused,
	wrapped("NOREPLICAS Not enough good replicas to write."):                                  redisexec.Transient,
	wrapped("MISCONF Errors writing to the AOF file: No space left on device"):                redisexec.Refused,
	wrapped("WRONGTYPE Operation against a key holding the wrong kind of value"):              redisexec.Halfway,
	"ERR Error running script (call to f_6b): @user_script:1: user_script:1: oops":            redisexec.Halfway,
	"ERR a text that mentions READONLY, OOM and - : -READONLY in passing":                     redisexec.Halfway,
	"ERR Error running script (call to f_6b): @user_script:1: an error about READONLY things": redisexec.Halfway,
}

func TestErrorRepliesAreJudgedByTheirFirstWord(t *testing.T) {
	for words, want := range serverWords {
		require.Equal(t, want, redisexec.Judge(replyError(words)), words)
		require.Equal(t, want, redisexec.Judge(fmt.Errorf("wrapped: %w", replyError(words))), words)
	}
}

// The types that go-redis has for some error replies change nothing.
func TestErrorRepliesAreJudgedAlikeWhenTheyComeFromAServer(t *testing.T) {
	relay := redistest.NewRelay(t, redistest.Mini(t).Addr)
	rdb := redis.NewClient(&redis.Options{Addr: relay.Addr, MaxRetries: -1})
	t.Cleanup(func() { rdb.Close() })
	for words, want := range serverWords {
		rule := relay.ReplyWith("-"+words+"\r\n", redistest.Scripts)
		cmd := redisexec.NewCall(t.Context(), "evalsha", protocol.AcquireScript.Digest, []any{"key"}, nil)
		err := rdb.Process(t.Context(), cmd)
		rule.Wait(t)
		require.Equal(t, want, redisexec.Judge(err), "%T: %v", err, err)
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
		want redisexec.Verdict
	}{
		{nil, redisexec.Fine},
		{redis.Nil, redisexec.Fine},
		{dial, redisexec.Transient},
		{fmt.Errorf("wrapped: %w", dial), redisexec.Transient},
		{&net.OpError{Op: "dial", Net: "tcp", Err: timeout{}}, redisexec.Transient},
		{redis.ErrPoolTimeout, redisexec.Transient},
		{redis.ErrPoolExhausted, redisexec.Transient},
		{redis.ErrAutoPipelineTimeout, redisexec.Transient},
		{redis.ErrAutoPipelineQueueFull, redisexec.Transient},
		{fmt.Errorf("wrapped: %w", redis.ErrPoolTimeout), redisexec.Transient},
		{redis.ErrClosed, redisexec.Forbidden},
		{&net.OpError{Op: "read", Net: "tcp", Err: timeout{}}, redisexec.Unknown},
		{&net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}, redisexec.Unknown},
		{&net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}, redisexec.Unknown},
		{timeout{}, redisexec.Unknown},
		{io.EOF, redisexec.Unknown},
		{io.ErrUnexpectedEOF, redisexec.Unknown},
		{net.ErrClosed, redisexec.Unknown},
		{context.Canceled, redisexec.Unknown},
		{context.DeadlineExceeded, redisexec.Unknown},
		{lockerr.NoAnswer, redisexec.Unknown},
		{errors.New("anything else"), redisexec.Unknown},
		{errors.New("READONLY, says somebody who is not the server"), redisexec.Unknown},
	} {
		require.Equal(t, c.want, redisexec.Judge(c.err), "%T: %v", c.err, c.err)
	}
}

func TestVerdictsAreConsistent(t *testing.T) {
	for _, v := range []redisexec.Verdict{redisexec.Fine, redisexec.Transient, redisexec.Refused, redisexec.Forbidden, redisexec.Unknown, redisexec.Halfway} {
		require.False(t, v.Resend && v.Permanent, "%+v", v)
		require.False(t, v.Answered && (v.NotExecuted || v.Resend || v.Permanent), "%+v", v)
	}
	require.False(t, redisexec.Unknown.NotExecuted)
	require.False(t, redisexec.Halfway.NotExecuted)
	require.False(t, redisexec.Halfway.Resend, "the same script would go wrong again")
}

func TestAScriptThatTheServerForgotIsSentInFull(t *testing.T) {
	server := redistest.NewServer(t)
	relay := redistest.NewRelay(t, server.Addr)
	rdb := redis.NewClient(&redis.Options{Addr: relay.Addr})
	t.Cleanup(func() { rdb.Close() })
	b := newBench(t, rdb)
	for range 2 {
		require.NoError(t, b.rdb.ScriptFlush(t.Context()).Err())
		relay.ResetLog()
		_, out := b.Acquire(t.Context(), once, b.target(1), me, termsOf())
		mustDo(t, out)
		require.Equal(t, 2, relay.Count(redistest.Script(protocol.AcquireScript.Source)))
		require.Equal(t, 1, relay.Executed(redistest.Script(protocol.AcquireScript.Source)))
	}
	_, out := b.Acquire(t.Context(), once, b.target(1), me, termsOf())
	mustDo(t, out)
	require.Equal(t, 3, relay.Count(redistest.Script(protocol.AcquireScript.Source)), "now it is known")
}
