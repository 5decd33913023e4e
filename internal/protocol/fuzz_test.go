package protocol

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redisexec"
)

func FuzzReply(f *testing.F) {
	for _, seed := range []string{"", "i\x01", "li\x01i\x05.", "li\x00i\x05i\x01sab..", "lnes.", "li\x01i\x05s0.sa.s1..", "lllll", "li\xffi\x01.", "i\x30", "i\xfe"} {
		f.Add([]byte(seed))
	}
	rdb := &puppet{}
	p := plainOn(f, rdb)
	target := keysOf(f, "a", "b")
	f.Fuzz(func(t *testing.T, program []byte) {
		rdb.value, _ = build(program, 0)
		before := fmt.Sprint(rdb.value)
		first := firstOf(rdb.value)
		for name, do := range calls {
			answer, out := do(p, once, target)
			switch {
			case out.Err == nil:
				require.False(t, out.Ambiguous)
				messages, bare := rdb.value.(int64) // by so many processes: what a release says of its messages
				if name != "release" || !bare {
					require.Contains(t, []any{int64(0), int64(1)}, first, "%s understood %v", name, rdb.value)
				} else {
					require.GreaterOrEqual(t, messages, int64(-1))
				}
			default:
				require.False(t, answer, "%s took something from %v", name, rdb.value)
				require.True(t, out.Permanent)
				require.Equal(t, strings.Contains(out.Err.Error(), "unexpected reply"), out.Ambiguous)
			}
		}
		require.Equal(t, before, fmt.Sprint(rdb.value), "the reply itself is not changed")
	})
}

// build makes a value of what the bytes say, and returns the rest of them.
func build(program []byte, depth int) (any, []byte) {
	if len(program) == 0 || depth > 20 {
		return nil, nil
	}
	op, rest := program[0], program[1:]
	switch op {
	case 'i':
		if len(rest) == 0 {
			return int64(0), nil
		}
		return int64(int8(rest[0])), rest[1:]
	case 'I':
		n := min(8, len(rest))
		v := int64(0)
		for _, c := range rest[:n] {
			v = v<<8 | int64(c)
		}
		return v, rest[n:]
	case 's':
		end := max(0, slices.Index(rest, '.'))
		return string(rest[:end]), rest[min(end+1, len(rest)):]
	case 'e':
		return redis.ErrClosed, rest
	case 'd':
		return 1.5, rest
	case 'b':
		return true, rest
	case 'm':
		return map[any]any{"a": int64(1)}, rest
	case 'l':
		values := []any{}
		for len(rest) > 0 && rest[0] != '.' {
			var v any
			v, rest = build(rest, depth+1)
			values = append(values, v)
		}
		return values, rest[min(1, len(rest)):]
	}
	return nil, rest
}

func firstOf(value any) any {
	if values, ok := value.([]any); ok {
		if len(values) == 0 {
			return nil
		}
		return values[0]
	}
	return value
}

// liar is a server in memory that answers every script with the same bytes, and then hangs up.
type liar struct{ reply atomic.Pointer[string] }

func (l *liar) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	go l.serve(server)
	return client, nil
}

// serve does as little of Redis' protocol as a client that introduces itself needs.
func (l *liar) serve(conn net.Conn) {
	defer conn.Close()
	r := bufio.NewReader(conn)
	for {
		command, err := readCommand(r)
		if err != nil {
			return
		}
		if command == "eval" || command == "evalsha" {
			_, _ = io.WriteString(conn, *l.reply.Load())
			return
		}
		if _, err := io.WriteString(conn, "-ERR unknown command\r\n"); err != nil {
			return
		}
	}
}

// readCommand returns the first word of a command, and skips the others.
func readCommand(r *bufio.Reader) (first string, err error) {
	n, err := readLength(r)
	for i := range n {
		size, failed := readLength(r)
		word := make([]byte, size+2)
		if _, err = io.ReadFull(r, word); failed != nil || err != nil {
			return "", io.ErrUnexpectedEOF
		}
		if i == 0 {
			first = string(word[:size])
		}
	}
	return strings.ToLower(first), err
}

func readLength(r *bufio.Reader) (int, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}

// lied returns a protocol on a liar.
func lied(tb testing.TB, l *liar) *Plain {
	tb.Helper()
	rdb := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:6379", Dialer: l.dial, Protocol: 2, DisableIdentity: true, MaxRetries: -1, DialerRetries: 1,
		ConnMaxIdleTime:          time.Nanosecond, // the server has hung up
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	tb.Cleanup(func() { _ = rdb.Close() })
	p := plainOn(tb, rdb)
	p.Exec.Unpipelined = true // the connection of a pipeline is not a new one for each command
	return p
}

// one is the integer that begins every good answer, as it may be spelled.
var one = regexp.MustCompile(`:\+?0*1\r\n`)

// errorWords are error replies of Redis, as it words them: one or more of each kind.
var errorWords = []string{
	"LOADING Redis is loading the dataset in memory",
	"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
	"CLUSTERDOWN The cluster is down",
	"TRYAGAIN Multiple keys request during rehashing of slot",
	"NOREPLICAS Not enough good replicas to write.",
	"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
	"READONLY You can't write against a read only replica. script: 3f, on @user_script:1.",
	"NOSCRIPT No matching script. Please use EVAL.",
	"ERR max number of clients reached",
	"OOM command not allowed when used memory > 'maxmemory'.",
	"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist",
	"MOVED 3999 127.0.0.1:6381",
	"ASK 3999 127.0.0.1:6381",
	"NOAUTH Authentication required.",
	"WRONGPASS invalid username-password pair or user is disabled.",
	"NOPERM this user has no permissions to run the 'evalsha' command",
	"DENIED Redis is running in protected mode because protected mode is enabled",
	"CROSSSLOT Keys in request don't hash to the same slot",
	"ERR unknown command 'evalsha', with args beginning with: '3f'",
	"NOPERM ACL failure in script: User app has no permissions to run the 'set' command",
	"BUSYKEY Target key name already exists.",
	"WRONGTYPE Operation against a key holding the wrong kind of value",
	"ERR The user executing the script can't run this command or subcommand script: 3f, on @u:1.",
	"ERR Script attempted to access a non local key in a cluster node",
	"ERR Unable to execute command 'exists' in script because undeclared keys were accessed during rehashing of the slot",
	"ERR value is not an integer or out of range",
	"UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
	"ERR Error running script (call to f_6b): @user_script:1: @user_script: 1: -READONLY You can't write against a read only replica.",
	"ERR Error running script (call to f_6b): @user_script:1: user_script:1: oops",
	"ERR a text that mentions READONLY, OOM and - : -READONLY in passing",
	"",
}

// FuzzReplyOnTheWire checks that whatever bytes a server sends, reading them is an error or
// an answer that they contain, and never a panic or a grant of nobody's.
func FuzzReplyOnTheWire(f *testing.F) {
	for _, replies := range []map[string]string{nonsense, lame["acquire"], lame["reenter"], lame["release"], lame["renew"], lame["renew many"], lame["state"]} {
		for _, raw := range replies {
			if len(raw) < 4096 {
				f.Add(raw)
			}
		}
	}
	for _, words := range errorWords {
		f.Add("-" + words + "\r\n")
	}
	for _, raw := range []string{
		list(1, 7), list(0, 5000, 1, bulk(them)), list(1, 5000, bulk("7"), bulk(me), bulk("1")), ":1\r\n", ":0\r\n", list(1, 0), list(-1, 1),
		"", "\r\n", "*", "*2\r\n:1\r\n", "*-2\r\n", ">2\r\n+push\r\n:1\r\n" + list(1, 7), "|1\r\n+a\r\n:1\r\n" + list(1, 7),
		"*?\r\n:1\r\n.\r\n", "!3\r\nERR\r\n", list(1, 7) + list(1, 7), ":1\n", ": 1\r\n",
	} {
		f.Add(raw)
	}
	l := &liar{}
	p := lied(f, l)
	target := keysOf(f, "a", "b")
	f.Fuzz(func(t *testing.T, raw string) {
		if tooLong.MatchString(raw) {
			return // go-redis makes room for what is announced
		}
		l.reply.Store(&raw)
		for name, do := range calls {
			answer, out := do(p, outside, target)
			if out.Err != nil {
				require.False(t, answer, "%s took something from %q", name, raw)
				continue
			}
			require.False(t, out.Ambiguous, "%s of %q", name, raw)
			require.False(t, out.Permanent, "%s of %q", name, raw)
		}
		g, out := p.Acquire(t.Context(), outside, target, me, termsOf())
		if g.Held {
			require.NoError(t, out.Err)
			require.Regexp(t, one, raw)
		}
	})
}

// tooLong matches what announces more than fits into memory.
var tooLong = regexp.MustCompile(`[*$%~>|=!(]\+?[0-9]{6,}`)

// outside is one copy.
var outside = redisexec.CallOptions{Attempts: 1}
