package redisexec

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// readReply reads the reply to a script, in RESP 2, and returns what go-redis would.
func readReply(r *bufio.Reader) (any, error) {
	line, err := readLine(r)
	if err != nil {
		return nil, err
	}
	kind, text := line[0], line[1:max(1, len(line)-len("\r\n"))]
	switch kind {
	case '+':
		return string(text), nil
	case '-':
		return nil, replyError(text)
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %q", errNoReply, line)
	case kind == ':':
		return n, nil
	case n < 0:
		return nil, redis.Nil
	case n > mostOfReply:
		return nil, fmt.Errorf("%w: %q", errNoReply, line)
	case kind == '$':
		return readText(r, int(n))
	case kind == '*':
		return readElements(r, make([]any, n))
	}
	return nil, fmt.Errorf("%w: %q", errNoReply, line)
}

// readLine reads until the end of a line. The result is valid until the next read.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if err != bufio.ErrBufferFull {
		return line, err
	}
	begin := bytes.Clone(line)
	rest, err := r.ReadBytes('\n')
	return append(begin, rest...), err
}

// readText reads a text of n bytes, and the end of its line.
func readText(r *bufio.Reader, n int) (any, error) {
	whole := n + len("\r\n")
	if whole > r.Size() {
		text := make([]byte, whole)
		_, err := io.ReadFull(r, text)
		return string(text[:n]), err
	}
	text, err := r.Peek(whole)
	if err != nil {
		return nil, err
	}
	s := string(text[:n])
	_, err = r.Discard(whole)
	return s, err
}

// readElements fills all with replies. A nil, or an error reply, is an element as well.
func readElements(r *bufio.Reader, all []any) (any, error) {
	for i := range all {
		element, err := readReply(r)
		var message redis.Error
		switch {
		case err == nil:
			all[i] = element
		case errors.Is(err, redis.Nil):
		case errors.As(err, &message):
			all[i] = message
		default:
			return nil, err
		}
	}
	return all, nil
}

// mostOfReply bounds the length of a string or list, so that no nonsense is waited for: scripts return a few names.
const mostOfReply = 1 << 24

var errNoReply = errors.New("this is no reply of Redis")

// replyError is an error reply.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}
