package relock

import (
	"bufio"
	"context"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// liar is a server in memory that answers every script with the same bytes, and then hangs up.
type liar struct{ says atomic.Pointer[string] }

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
			_, _ = io.WriteString(conn, *l.says.Load())
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
func lied(tb testing.TB, l *liar) *protocol.Plain {
	tb.Helper()
	rdb := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:6379", Dialer: l.dial, Protocol: 2, DisableIdentity: true, MaxRetries: -1, DialerRetries: 1,
		ConnMaxIdleTime:          time.Nanosecond, // the server has hung up
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	tb.Cleanup(func() { _ = rdb.Close() })
	return plainOn(tb, rdb)
}

// one is the integer that begins every good answer, as it may be spelled.
var one = regexp.MustCompile(`:\+?0*1\r\n`)

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
	for words := range redistest.ErrorReplies {
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
	target, err := keys.New("", []string{"a", "b"})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, raw string) {
		if tooLong.MatchString(raw) {
			return // go-redis makes room for what is announced
		}
		l.says.Store(&raw)
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

// outside is one copy, past the engine: its connection does not have to be new.
var outside = redisexec.CallOptions{Attempts: 1, Avoid: redisexec.AvoidAfter(1)}
