package redisexec

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// parseReply parses the reply to a script, in RESP 2, that b begins with. It returns what go-redis would, and the length of the
// reply. errPart: b is only the beginning of a reply.
func parseReply(b []byte) (value any, n int, err error) {
	end := bytes.IndexByte(b, '\n')
	if end < 0 && len(b) <= mostOfReply {
		return nil, 0, errPart
	}
	line := bytes.TrimSuffix(b[:max(0, end)], []byte("\r"))
	if len(line) == 0 {
		return nil, 0, errNoReply
	}
	n = end + 1
	kind, text := line[0], line[1:]
	switch kind {
	case '+':
		return string(text), n, nil
	case '-':
		return nil, n, replyError(text)
	}
	number, err := strconv.ParseInt(string(text), 10, 64)
	switch {
	case err != nil, kind != ':' && number > mostOfReply:
	case kind == ':':
		return number, n, nil
	case number < 0:
		return nil, n, redis.Nil
	case kind == '$':
		if end = n + int(number) + len("\r\n"); end > len(b) {
			return nil, 0, errPart
		}
		return string(b[n : n+int(number)]), end, nil
	case kind == '*':
		return parseElements(b, n, int(number))
	}
	return nil, 0, fmt.Errorf("%w: %q", errNoReply, line[:min(len(line), 100)])
}

// parseElements parses the elements of a list, which begin at b[n]. A nil, or an error reply, is an element as well.
func parseElements(b []byte, n, number int) (value any, end int, err error) {
	if len(b)-n < number*len("+\r\n") { // so nothing is allocated for elements that are not there
		return nil, 0, errPart
	}
	list := make([]any, number)
	for i := range list {
		element, size, err := parseReply(b[n:])
		switch {
		case err == nil:
			list[i] = element
		case err == redis.Nil:
		case Replied(err):
			list[i] = err
		default:
			return nil, 0, err
		}
		n += size
	}
	return list, n, nil
}

// mostOfReply bounds the length of a line, a string or a list, so that no nonsense is waited for: scripts return a few names.
const mostOfReply = 1 << 24

var (
	errPart    = errors.New("only the beginning of a reply has come")
	errNoReply = errors.New("this is no reply of Redis")
)

// replyError is an error reply.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}
