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
	"time"

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
	"OOM command not allowed when used memory > 'maxmemory'.":                                      refused,
	"OOM command not allowed when used memory > 'maxmemory'. script: 3f, on @user_script:1.":       refused,
	"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist":      refused,
	"MOVED 3999 127.0.0.1:6381":                                                                    refused,
	"ASK 3999 127.0.0.1:6381":                                                                      refused,
	"NOAUTH Authentication required.":                                                              forbidden,
	"WRONGPASS invalid username-password pair or user is disabled.":                                forbidden,
	"NOPERM this user has no permissions to run the 'evalsha' command":                             forbidden,
	"NOPERM this user has no permissions to access one of the keys used as arguments":              forbidden,
	"CROSSSLOT Keys in request don't hash to the same slot":                                        forbidden,
	"ERR unknown command 'evalsha', with args beginning with: '3f'":                                forbidden,
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
		cmd := newCall(t.Context(), "evalsha", acquireScript.sha1, []string{"key"}, nil)
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

// failing checks how a server in distress refuses an acquire; keysAfter, that "not executed"
// was true.
func failing(t *testing.T, sick redis.UniversalClient, well *redis.Client, want verdict, words string) {
	t.Helper()
	b := newBench(t, well)
	target := b.target(1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, out := newPlain(t, sick).acquire(ctx, once, target, me, terms(WithFencing()))
	require.ErrorContains(t, out.err, words)
	require.Equal(t, want, judge(out.err), "%T: %v", out.err, out.err)
	require.Equal(t, !want.notExecuted, out.doubt)
	require.Equal(t, want.permanent, out.permanent)
}

func loaded(t *testing.T, args ...string) (*redistest.Server, *redis.Client) {
	server := redistest.NewServer(t, args...)
	rdb := server.Client(t)
	for _, s := range []*script{acquireScript, releaseScript} {
		require.NoError(t, rdb.ScriptLoad(t.Context(), s.source).Err())
	}
	return server, rdb
}

func keysAfter(t *testing.T, rdb *redis.Client) {
	t.Helper()
	require.Zero(t, rdb.DBSize(t.Context()).Val(), "something was executed")
}

func TestAReplicaDoesNotExecute(t *testing.T) {
	_, rdb := loaded(t)
	require.NoError(t, rdb.Do(t.Context(), "replicaof", "127.0.0.1", "1").Err())
	failing(t, rdb, rdb, transient, "READONLY")
	require.NoError(t, rdb.ConfigSet(t.Context(), "replica-serve-stale-data", "no").Err())
	failing(t, rdb, rdb, transient, "MASTERDOWN")
	require.NoError(t, rdb.Do(t.Context(), "replicaof", "no", "one").Err())
	keysAfter(t, rdb)
}

func TestAServerThatLacksSomethingDoesNotExecute(t *testing.T) {
	for name, c := range map[string]struct {
		setting, sick, well string
		want                verdict
	}{
		"OOM":        {"maxmemory", "1", "0", refused},
		"NOREPLICAS": {"min-replicas-to-write", "1", "0", transient},
	} {
		t.Run(name, func(t *testing.T) {
			_, rdb := loaded(t)
			require.NoError(t, rdb.ConfigSet(t.Context(), c.setting, c.sick).Err())
			failing(t, rdb, rdb, c.want, name)
			require.NoError(t, rdb.ConfigSet(t.Context(), c.setting, c.well).Err())
			keysAfter(t, rdb)
		})
	}
}

func TestAServerThatCannotSaveDoesNotExecute(t *testing.T) {
	server, rdb := loaded(t, "--save", "900 1")
	require.NoError(t, os.RemoveAll(server.Dir))
	rdb.BgSave(t.Context())
	require.Eventually(t, func() bool {
		status := rdb.InfoMap(t.Context(), "persistence").Val()["Persistence"]["rdb_last_bgsave_status"]
		return status == "err"
	}, 20*time.Second, 5*time.Millisecond)
	failing(t, rdb, rdb, refused, "MISCONF")
	keysAfter(t, rdb)
}

func TestABusyServerDoesNotExecute(t *testing.T) {
	server, rdb := loaded(t, "--lua-time-limit", "10")
	stuck := make(chan error, 1)
	other := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1, ReadTimeout: time.Minute})
	t.Cleanup(func() { other.Close() })
	go func() { stuck <- other.Eval(t.Context(), "while true do end", nil).Err() }()
	require.Eventually(t, func() bool {
		return redis.HasErrorPrefix(rdb.Ping(t.Context()).Err(), "BUSY")
	}, 20*time.Second, time.Millisecond)
	failing(t, rdb, rdb, transient, "BUSY")
	require.NoError(t, rdb.ScriptKill(t.Context()).Err())
	require.Error(t, <-stuck)
	keysAfter(t, rdb)
}

func TestAUserWithoutPermissionDoesNotExecute(t *testing.T) {
	for name, rules := range map[string][]string{
		"no keys":    {"+@all", "~other:*"},
		"no scripts": {"+@all", "~*", "-evalsha"},
	} {
		t.Run(name, func(t *testing.T) {
			limited, full := asUser(t, rules...)
			failing(t, limited.rdb, full.rdb, forbidden, "NOPERM")
			keysAfter(t, full.rdb)
		})
	}
}

func TestAWrongPasswordDoesNotExecute(t *testing.T) {
	server := redistest.NewServer(t, "--requirepass", "secret")
	as := func(password string) *redis.Client {
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr, Password: password})
		t.Cleanup(func() { rdb.Close() })
		return rdb
	}
	failing(t, as("wrong"), as("secret"), forbidden, "WRONGPASS")
	failing(t, as(""), as("secret"), forbidden, "NOAUTH")
	keysAfter(t, as("secret"))
}

func TestAClusterDoesNotExecuteWhatIsNotItsOwn(t *testing.T) {
	t.Parallel() // a new Cluster is down for two seconds
	_, rdb := loaded(t, "--cluster-enabled", "yes")
	failing(t, rdb, rdb, transient, "CLUSTERDOWN")
	require.NoError(t, rdb.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	require.Eventually(t, func() bool { return rdb.Exists(t.Context(), "key").Err() == nil }, 20*time.Second, 5*time.Millisecond)
	b := newBench(t, rdb)
	_, out := b.acquire(t.Context(), once, b.target(3), me, terms())
	require.ErrorContains(t, out.err, "CROSSSLOT")
	require.Equal(t, forbidden, judge(out.err))
	keysAfter(t, rdb)
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
		_, out := b.acquire(t.Context(), once, b.target(1), me, terms())
		mustDo(t, out)
		require.Equal(t, 2, relay.Count(redistest.Script(acquireScript.source)))
		require.Equal(t, 1, relay.Executed(redistest.Script(acquireScript.source)))
	}
	_, out := b.acquire(t.Context(), once, b.target(1), me, terms())
	mustDo(t, out)
	require.Equal(t, 3, relay.Count(redistest.Script(acquireScript.source)), "now it is known")
}

func TestARefusedDialDoesNotExecute(t *testing.T) {
	relay := redistest.NewRelay(t, redistest.Mini(t).Addr)
	require.NoError(t, relay.Refuse(true))
	rdb := redis.NewClient(&redis.Options{Addr: relay.Addr, DialerRetries: 1})
	t.Cleanup(func() { rdb.Close() })
	_, out := newPlain(t, rdb).acquire(t.Context(), once, &target{keys: []string{"key"}}, me, terms())
	require.ErrorIs(t, out.err, syscall.ECONNREFUSED)
	require.Equal(t, transient, judge(out.err))
	require.False(t, out.doubt)
}

// Whether a server that has no room for one more client says so, or hangs up first, is
// chance; either way another attempt may fare better, and nothing is known to be wrong.
func TestAFullServerIsWorthAnotherTry(t *testing.T) {
	t.Parallel() // go-redis takes a second to give up
	_, admin := loaded(t)
	require.NoError(t, admin.Ping(t.Context()).Err())
	require.NoError(t, admin.ConfigSet(t.Context(), "maxclients", "1").Err())
	rdb := redis.NewClient(&redis.Options{Addr: admin.Options().Addr, DialerRetries: 1})
	t.Cleanup(func() { rdb.Close() })
	_, out := newPlain(t, rdb).acquire(t.Context(), once, &target{keys: []string{"key"}}, me, terms())
	require.Error(t, out.err)
	v := judge(out.err)
	require.True(t, v.resend, "%T: %v", out.err, out.err)
	require.False(t, v.permanent)
	require.False(t, v.answered)
	keysAfter(t, admin)
}

func TestAnUnansweredScriptIsInDoubt(t *testing.T) {
	for name, fault := range map[string]func(*redistest.Relay, redistest.Match) *redistest.Rule{
		"the connection is cut":  (*redistest.Relay).DropReply,
		"the reply never comes":  (*redistest.Relay).LoseReply,
		"the command is delayed": (*redistest.Relay).Block,
	} {
		t.Run(name, func(t *testing.T) {
			relay := redistest.NewRelay(t, redistest.Mini(t).Addr)
			rdb := redis.NewClient(&redis.Options{Addr: relay.Addr})
			t.Cleanup(func() { rdb.Close() })
			require.NoError(t, rdb.ScriptLoad(t.Context(), acquireScript.source).Err())
			fault(relay, redistest.Script(acquireScript.source))
			x := newExecutor(rdb, systemClock, 400*time.Millisecond) // a quarter of which it waits
			t.Cleanup(func() { x.close(context.Background()) })
			_, out := (&plain{exec: x}).acquire(t.Context(), once, &target{keys: []string{"key"}}, me, terms())
			require.Error(t, out.err)
			require.True(t, out.doubt)
			require.False(t, out.permanent)
			require.Equal(t, unknown, judge(out.err), "%v", out.err)
		})
	}
}
