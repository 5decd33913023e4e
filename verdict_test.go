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
var serverWords = map[string]verdict{
	"LOADING Redis is loading the dataset in memory":                                               transient,
	"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.":             transient,
	"CLUSTERDOWN The cluster is down":                                                              transient,
	"CLUSTERDOWN Hash slot not served":                                                             transient,
	"TRYAGAIN Multiple keys request during rehashing of slot":                                      transient,
	"NOREPLICAS Not enough good replicas to write.":                                                transient,
	"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.":       transient,
	"READONLY You can't write against a read only replica.":                                        transient,
	"READONLY You can't write against a read only replica. script: 3f, on @user_script:1.":         transient,
	"NOSCRIPT No matching script. Please use EVAL.":                                                transient,
	"ERR max number of clients reached":                                                            transient,
	"ERR max number of clients + cluster connections reached":                                      transient,
	"OOM command not allowed when used memory > 'maxmemory'.":                                      refused,
	"OOM command not allowed when used memory > 'maxmemory'. script: 3f, on @user_script:1.":       refused,
	"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist":      refused,
	"MOVED 3999 127.0.0.1:6381":                                                                    refused,
	"ASK 3999 127.0.0.1:6381":                                                                      refused,
	"NOAUTH Authentication required.":                                                              forbidden,
	"WRONGPASS invalid username-password pair or user is disabled.":                                forbidden,
	"NOPERM this user has no permissions to run the 'evalsha' command":                             forbidden,
	"NOPERM this user has no permissions to access one of the keys used as arguments":              forbidden,
	"DENIED Redis is running in protected mode because protected mode is enabled":                  forbidden,
	"CROSSSLOT Keys in request don't hash to the same slot":                                        forbidden,
	"ERR unknown command 'evalsha', with args beginning with: '3f'":                                forbidden,
	"NOPERM ACL failure in script: User app has no permissions to run the 'set' command":           halfway,
	"BUSYKEY Target key name already exists.":                                                      halfway,
	"WRONGTYPE Operation against a key holding the wrong kind of value":                            halfway,
	"ERR The user executing the script can't run this command or subcommand script: 3f, on @u:1.":  halfway,
	"ERR Script attempted to access a non local key in a cluster node":                             halfway,
	"ERR Error compiling script (new function): user_script:1: unexpected symbol":                  halfway,
	"ERR value is not an integer or out of range":                                                  halfway,
	"ERR user_script:1: Script attempted to access nonexistent global variable 'oops' script: 3f.": halfway,
	"UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)": halfway,
	"": halfway,
	wrapped("READONLY You can't write against a read only replica."):                          transient,
	wrapped("OOM command not allowed when used memory > 'maxmemory'."):                        refused,
	wrapped("NOREPLICAS Not enough good replicas to write."):                                  transient,
	wrapped("MISCONF Errors writing to the AOF file: No space left on device"):                refused,
	wrapped("WRONGTYPE Operation against a key holding the wrong kind of value"):              halfway,
	"ERR Error running script (call to f_6b): @user_script:1: user_script:1: oops":            halfway,
	"ERR a text that mentions READONLY, OOM and - : -READONLY in passing":                     halfway,
	"ERR Error running script (call to f_6b): @user_script:1: an error about READONLY things": halfway,
}

func TestErrorRepliesAreJudgedByTheirFirstWord(t *testing.T) {
	for words, want := range serverWords {
		require.Equal(t, want, judge(replyError(words)), words)
		require.Equal(t, want, judge(fmt.Errorf("wrapped: %w", replyError(words))), words)
	}
}

// The types that go-redis has for some error replies change nothing.
func TestErrorRepliesAreJudgedAlikeWhenTheyComeFromAServer(t *testing.T) {
	relay := redistest.NewRelay(t, redistest.Mini(t).Addr)
	rdb := redis.NewClient(&redis.Options{Addr: relay.Addr, MaxRetries: -1})
	t.Cleanup(func() { rdb.Close() })
	for words, want := range serverWords {
		rule := relay.ReplyWith("-"+words+"\r\n", redistest.Scripts)
		cmd := newCall(t.Context(), "evalsha", acquireScript.digest, []any{"key"}, nil)
		err := rdb.Process(t.Context(), cmd)
		rule.Wait(t)
		require.Equal(t, want, judge(err), "%T: %v", err, err)
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
		want verdict
	}{
		{nil, fine},
		{redis.Nil, fine},
		{dial, transient},
		{fmt.Errorf("wrapped: %w", dial), transient},
		{&net.OpError{Op: "dial", Net: "tcp", Err: timeout{}}, transient},
		{redis.ErrPoolTimeout, transient},
		{redis.ErrPoolExhausted, transient},
		{redis.ErrAutoPipelineTimeout, transient},
		{redis.ErrAutoPipelineQueueFull, transient},
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
		{errNoAnswer, unknown},
		{errors.New("anything else"), unknown},
		{errors.New("READONLY, says somebody who is not the server"), unknown},
	} {
		require.Equal(t, c.want, judge(c.err), "%T: %v", c.err, c.err)
	}
}

func TestVerdictsAreConsistent(t *testing.T) {
	for _, v := range []verdict{fine, transient, refused, forbidden, unknown, halfway} {
		require.False(t, v.resend && v.permanent, "%+v", v)
		require.False(t, v.answered && (v.notExecuted || v.resend || v.permanent), "%+v", v)
	}
	require.False(t, unknown.notExecuted)
	require.False(t, halfway.notExecuted)
	require.False(t, halfway.resend, "the same script would go wrong again")
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
		_, out := b.acquire(t.Context(), once, b.target(1), me, termsOf())
		mustDo(t, out)
		require.Equal(t, 2, relay.Count(redistest.Script(acquireScript.source)))
		require.Equal(t, 1, relay.Executed(redistest.Script(acquireScript.source)))
	}
	_, out := b.acquire(t.Context(), once, b.target(1), me, termsOf())
	mustDo(t, out)
	require.Equal(t, 3, relay.Count(redistest.Script(acquireScript.source)), "now it is known")
}
