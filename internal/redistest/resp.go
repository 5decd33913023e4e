package redistest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Command is one command as a client sent it: its name and arguments.
type Command []string

// Name is the command's name in upper case, "" if it is empty.
func (c Command) Name() string { return strings.ToUpper(c.Arg(0)) }

// Arg returns the i-th argument, counting the name as the 0th; "" if there are fewer.
func (c Command) Arg(i int) string {
	if i >= len(c) {
		return ""
	}
	return c[i]
}

// ScriptArgs returns ARGV of a script; nil if c runs none.
func (c Command) ScriptArgs() []string {
	keys, err := strconv.Atoi(c.Arg(2))
	if !Scripts(c) || err != nil || 3+keys > len(c) {
		return nil
	}
	return c[3+keys:]
}

// Has reports whether one of the arguments is exactly arg.
func (c Command) Has(arg string) bool {
	for i := 1; i < len(c); i++ {
		if c[i] == arg {
			return true
		}
	}
	return false
}

// String is the command in one line, long arguments quoted and cut.
func (c Command) String() string {
	words := make([]string, len(c))
	for i, word := range c {
		if len(word) > 60 {
			word = word[:60] + "…"
		}
		if words[i] = word; strings.ContainsAny(word, " \r\n\"") || word == "" {
			words[i] = strconv.Quote(word)
		}
	}
	return strings.Join(words, " ")
}

// readFrame reads one complete RESP2 or RESP3 value and returns its bytes as they came.
func readFrame(r *bufio.Reader) ([]byte, error) {
	var frame []byte
	for missing := 1; missing > 0; missing-- {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return nil, err
		}
		frame = append(frame, line...)
		kind := line[0]
		switch kind {
		case '+', '-', ':', ',', '#', '_', '(':
			continue
		}
		n, err := strconv.Atoi(string(bytes.TrimSpace(line[1:])))
		if err != nil {
			return nil, fmt.Errorf("redistest: bad RESP header %q", line)
		}
		switch kind {
		case '$', '=', '!':
			if n < 0 {
				continue
			}
			body := len(frame)
			frame = append(frame, make([]byte, n+2)...)
			if _, err := io.ReadFull(r, frame[body:]); err != nil {
				return nil, err
			}
		case '*', '~', '>':
			missing += max(n, 0)
		case '%':
			missing += 2 * n
		case '|':
			missing += 2*n + 1 // attributes precede the value that they describe
		default:
			return nil, fmt.Errorf("redistest: unknown RESP type %q", line)
		}
	}
	return frame, nil
}

// readCommand reads one command, an array of bulk strings or an inline line, and
// returns its bytes as they came too.
func readCommand(r *bufio.Reader) (Command, []byte, error) {
	first, err := r.Peek(1)
	if err != nil {
		return nil, nil, err
	}
	if first[0] != '*' {
		line, err := r.ReadBytes('\n')
		return strings.Fields(string(line)), line, err
	}
	frame, err := readFrame(r)
	if err != nil {
		return nil, nil, err
	}
	return bulks(frame), frame, nil
}

// bulks returns the bulk strings in a frame, in order, as far as they are complete.
func bulks(frame []byte) []string {
	var words []string
	for {
		header, rest, ok := bytes.Cut(frame, []byte("\r\n"))
		if !ok {
			return words
		}
		frame = rest
		length, isBulk := bytes.CutPrefix(header, []byte("$"))
		if !isBulk {
			continue
		}
		n, err := strconv.Atoi(string(length))
		if err != nil || n+2 > len(frame) {
			return words // cut short
		}
		if n < 0 {
			continue // null
		}
		words = append(words, string(frame[:n]))
		frame = frame[n+2:]
	}
}

// pushKind returns the first word of an array or push frame in upper case, which is its kind.
func pushKind(frame []byte) string {
	if words := bulks(frame[:min(len(frame), 64)]); len(words) > 0 {
		return strings.ToUpper(words[0])
	}
	return ""
}
