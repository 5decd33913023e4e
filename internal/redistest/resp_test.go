package redistest

import (
	"bufio"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

func TestRESP_FramesOfEveryTypeAreReadWhole(t *testing.T) {
	frames := []string{
		"+OK\r\n", "-ERR no\r\n", ":1\r\n", ",1.5\r\n", "#t\r\n", "_\r\n", "(123\r\n",
		"$-1\r\n", "$0\r\n\r\n", "$4\r\na\r\nb\r\n", "=5\r\ntxt:a\r\n", "!5\r\nERR x\r\n",
		"*-1\r\n", "*0\r\n", "*2\r\n*1\r\n:1\r\n$1\r\na\r\n",
		"%1\r\n+k\r\n*2\r\n:1\r\n:2\r\n", "~2\r\n:1\r\n:2\r\n", ">2\r\n+a\r\n+b\r\n",
		"|1\r\n+k\r\n+v\r\n:7\r\n",
		"-" + strings.Repeat("long ", 2000) + "\r\n",
	}
	r := bufio.NewReader(iotest.OneByteReader(strings.NewReader(strings.Join(frames, ""))))
	for _, want := range frames {
		got, err := readFrame(r)
		if err != nil || string(got) != want {
			t.Fatalf("got %.40q, %v; want %.40q", got, err, want)
		}
	}
	if _, err := readFrame(r); !errors.Is(err, io.EOF) {
		t.Fatalf("error at the end is %v", err)
	}
}

func TestRESP_InvalidFramesAreErrors(t *testing.T) {
	for _, bad := range []string{"?\r\n", "*x\r\n", "$3\r\nab", "\r\n", "*1\r\n"} {
		if frame, err := readFrame(bufio.NewReader(strings.NewReader(bad))); err == nil {
			t.Errorf("%q was read as %q", bad, frame)
		}
	}
}

func TestRESP_CommandsAreArraysOrInline(t *testing.T) {
	r := bufio.NewReader(strings.NewReader("*2\r\n$3\r\nGET\r\n$2\r\n\r\n\r\n" + "ping  hello\r\n" + "\r\n"))
	for _, want := range []Command{{"GET", "\r\n"}, {"ping", "hello"}, {}} {
		got, _, err := readCommand(r)
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("got %q, %v; want %q", got, err, want)
		}
	}
}

func TestRESP_KindOfAMessageIsItsFirstWord(t *testing.T) {
	for frame, want := range map[string]string{
		"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n":        "MESSAGE",
		">3\r\n$10\r\nssubscribe\r\n$1\r\nc\r\n:1\r\n":         "SSUBSCRIBE",
		"*1\r\n$100\r\n" + strings.Repeat("\r\n", 50) + "\r\n": "",
		"*2\r\n:1\r\n:2\r\n":                                   "",
		"*2\r\n$-1\r\n$4\r\npong\r\n":                          "PONG",
	} {
		if got := pushKind([]byte(frame)); got != want {
			t.Errorf("kind of %.30q is %q, want %q", frame, got, want)
		}
	}
}

func TestRESP_CommandPrintsInOneLine(t *testing.T) {
	c := Command{"eval", "return 1", strings.Repeat("x", 100), ""}
	if got, want := c.String(), `eval "return 1" `+strings.Repeat("x", 60)+`… ""`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if c.Name() != "EVAL" || c.Arg(9) != "" || c.Has("eval") || !c.Has("") {
		t.Error("name or arguments are wrong")
	}
}

func TestRESP_ArgumentsOfAScriptFollowItsKeys(t *testing.T) {
	require.Equal(t, []string{"a", "b"}, Command{"EVALSHA", "digest", "2", "key", "key", "a", "b"}.ScriptArgs())
	require.Empty(t, Command{"eval", "return 1", "1", "key"}.ScriptArgs())
	for _, c := range []Command{nil, {"EVAL", "return 1"}, {"EVAL", "return 1", "2", "key"}, {"HSET", "key", "1", "2", "3"}} {
		require.Nil(t, c.ScriptArgs(), c)
	}
}
