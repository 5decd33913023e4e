package redisexec

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// replyTo returns what conn has in reply to a script. Each beginning of that has to be the beginning of a reply.
func replyTo(t *testing.T, conn net.Conn, script string) (any, error) {
	t.Helper()
	_, err := fmt.Fprintf(conn, "*3\r\n$4\r\nEVAL\r\n$%d\r\n%s\r\n$1\r\n0\r\n", len(script), script)
	require.NoError(t, err)
	var reply []byte
	for one := make([]byte, 1); ; {
		value, n, err := parseReply(reply)
		if err != errPart {
			require.Len(t, reply, n)
			return value, err
		}
		_, err = io.ReadFull(conn, one)
		require.NoError(t, err)
		reply = append(reply, one...)
	}
}

func TestParseReply_ReturnsWhatGoRedisDoes(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb := redis.NewClient(redistest.Options(b.Addr, func(o *redis.Options) { o.Protocol = 2 }))
		t.Cleanup(func() { _ = rdb.Close() })
		conn, err := rdb.Options().Dialer(t.Context(), "tcp", b.Addr)
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		for _, script := range []string{
			"return 1", "return -5000000000", "return ''", "return 'a\\r\\nb'", "return {}", "return {1, 'two', {3, {'four'}}, false, 5}",
			"return redis.status_reply('FINE')", "return redis.error_reply('ERR no')", "return nil", "return {redis.error_reply('ERR no'), 1}", "return true",
		} {
			is, isErr := replyTo(t, conn, script)
			was, wasErr := rdb.Eval(t.Context(), script, nil).Result()
			require.Equal(t, fmt.Sprint(wasErr), fmt.Sprint(isErr), script)
			require.Equal(t, errors.Is(wasErr, redis.Nil), errors.Is(isErr, redis.Nil), script)
			require.Equal(t, Replied(wasErr), Replied(isErr), script)
			require.Equal(t, fmt.Sprintf("%T %v", was, was), fmt.Sprintf("%T %v", is, is), script)
		}
	})
}

func TestParseReply_RefusesNonsense(t *testing.T) {
	for _, nonsense := range []string{":\r\n", ":x\r\n", "?1\r\n", "$99999999999\r\n", "*99999999999\r\n", "*2\r\n:1\r\n?\r\n\r\n", "\n", "\r\n", strings.Repeat("+", mostOfReply+1)} {
		_, _, err := parseReply([]byte(nonsense))
		require.ErrorIs(t, err, errNoReply, "%.20q", nonsense)
		require.False(t, Replied(err), "%.20q", nonsense)
	}
	for _, part := range []string{"", ":", ":1\r", "$5\r\nab", "$5\r\nabcde\r", "*2\r\n:1\r\n", "*16777216\r\n"} {
		_, _, err := parseReply([]byte(part))
		require.ErrorIs(t, err, errPart, "%q", part)
	}
}
