package protocol

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// calls are the functions of the protocol, each with whether it gave an answer at all.
var calls = map[string]func(p *Plain, e redisexec.CallOptions, t *keys.Set) (answer bool, out redisexec.Outcome){
	"acquire": func(p *Plain, e redisexec.CallOptions, t *keys.Set) (bool, redisexec.Outcome) {
		g, out := p.Acquire(context.Background(), e, t, me, termsOf())
		return g != Grant{}, out
	},
	"reenter": func(p *Plain, e redisexec.CallOptions, t *keys.Set) (bool, redisexec.Outcome) {
		g, out := p.Reenter(context.Background(), e, t, me, termsOf(), false, []int{2, 2})
		return g != Grant{}, out
	},
	"renew": func(p *Plain, e redisexec.CallOptions, t *keys.Set) (bool, redisexec.Outcome) {
		ok, out := p.Renew(context.Background(), e, t, me, asked)
		return ok, out
	},
	"renew many": func(p *Plain, e redisexec.CallOptions, t *keys.Set) (bool, redisexec.Outcome) {
		lost, out := p.renewMany(context.Background(), e, t.Locks(), []any{me}, asked)
		return lost != nil, out
	},
	"release": func(p *Plain, e redisexec.CallOptions, t *keys.Set) (bool, redisexec.Outcome) {
		status, out := p.Release(context.Background(), e, t, me, []int{0, 0})
		return status.Ours, out
	},
	"handoff": func(p *Plain, e redisexec.CallOptions, t *keys.Set) (bool, redisexec.Outcome) {
		g, out := p.Handoff(context.Background(), e, t, me, you, termsOf())
		return g != Grant{}, out
	},
	"rename": func(p *Plain, e redisexec.CallOptions, t *keys.Set) (bool, redisexec.Outcome) {
		ok, _, out := p.Rename(context.Background(), e, t.Only(t.Keys[:1]), me, you, asked)
		return ok, out
	},
	"force": func(p *Plain, e redisexec.CallOptions, t *keys.Set) (bool, redisexec.Outcome) {
		ok, out := p.Force(context.Background(), e, t, 0, []string{me})
		return ok, out
	},
	"state": func(p *Plain, e redisexec.CallOptions, t *keys.Set) (bool, redisexec.Outcome) {
		s, out := p.State(context.Background(), e, t, 0)
		return s.Fields != nil || s.TTL != 0 || s.Token != 0 || s.Counts != nil, out
	},
}

// list returns a raw reply of these elements, which are raw or the digits of an integer.
func list(elements ...any) string {
	raw := fmt.Sprintf("*%d\r\n", len(elements))
	for _, e := range elements {
		switch e := e.(type) {
		case int:
			raw += fmt.Sprintf(":%d\r\n", e)
		case string:
			raw += e
		}
	}
	return raw
}

func bulk(text string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text) }

// nonsense are raw replies that no script can have given.
var nonsense = map[string]string{
	"nil":                      "$-1\r\n",
	"nil list":                 "*-1\r\n",
	"status":                   "+OK\r\n",
	"text":                     bulk("abc"),
	"empty text":               bulk(""),
	"digits as text":           bulk("1"),
	"empty list":               list(),
	"list of text":             list(bulk("1")),
	"list of nil":              list("$-1\r\n"),
	"list in a list":           list(list(1)),
	"deep list":                strings.Repeat("*1\r\n", 50) + ":1\r\n",
	"list of errors":           list("-ERR a\r\n", "-ERR b\r\n"),
	"unknown status":           ":-9\r\n",
	"unknown status in a list": list(-9, 1),
	"unknown large status":     list(99, 1),
	"largest integer":          ":9223372036854775807\r\n",
	"smallest integer":         ":-9223372036854775808\r\n",
	"refusal alone":            list(-1),
	"refusal of no key":        list(-1, 0),
	"refusal of a third key":   list(-2, 3),
	"refusal of a far key":     list(-3, ":9223372036854775807\r\n"),
	"refusal of a near key":    list(-3, ":-9223372036854775808\r\n"),
	"refusal of a named key":   list(-1, bulk("key")),
	"long list":                "*5000\r\n" + strings.Repeat(bulk("a word"), 5000),
	"long text":                bulk(strings.Repeat("x", 1<<16)),
}

// lame are replies that begin well, by the functions that must not take them.
var lame = map[string]map[string]string{
	"acquire": {
		"granted without a token":      list(1),
		"granted with a named token":   list(1, bulk("7")),
		"granted with nil":             list(1, "$-1\r\n"),
		"granted with a list":          list(1, list(7)),
		"busy alone":                   list(0),
		"busy without a holder":        list(0, 5000, 1),
		"busy at a third key":          list(0, 5000, 3, bulk(them)),
		"busy at no key":               list(0, 5000, 0, bulk(them)),
		"busy at a far key":            list(0, 5000, ":9223372036854775807\r\n", bulk(them)),
		"busy at a near key":           list(0, 5000, ":-9223372036854775808\r\n", bulk(them)),
		"busy by a number":             list(0, 5000, 1, 7),
		"busy by nil":                  list(0, 5000, 1, "$-1\r\n"),
		"busy for a named time":        list(0, bulk("5000"), 1, bulk(them)),
		"busy for an impossible time":  list(0, -3, 1, bulk(them)),
		"busy for less than any time":  list(0, ":-9223372036854775808\r\n", 1, bulk(them)),
		"granted, and an error inside": list(1, "-ERR no\r\n"),
		"refusal alone, bare":          ":-1\r\n",
	},
	"reenter": {"done without a token": list(1), "done with a named token": list(1, bulk("7")), "refusal alone, bare": ":-1\r\n"},
	"handoff": {"done without a token": list(1), "done with a named token": list(1, bulk("7")), "refusal alone, bare": ":-1\r\n"},
	"renew":   {"two": ":2\r\n", "minus one": ":-1\r\n"},
	"rename": {
		"done alone": list(1), "done, bare": ":1\r\n", "two": list(2, 0), "refusal alone, bare": ":-1\r\n",
		"received by a named number": list(1, bulk("7")), "received by less than none": list(1, -2),
	},
	"renew many": {
		"none": ":0\r\n", "more than all": ":2\r\n",
		"no hold lost": list(0), "a second lost": list(2), "the same lost twice": list(1, 1), "lost, and an error inside": list(1, "-ERR no\r\n"),
	},
	"force": {"two": ":2\r\n", "minus one": ":-1\r\n"},
	"release": {
		"received by less than none": ":-2\r\n",
		"done, in a list":            list(1),
		"done, in a longer list":     list(1, 1),
		"not ours alone":             list(0),
		"not ours, and minus two":    list(0, -2),
	},
	"state": {
		"absent":                  ":0\r\n",
		"refusal alone, bare":     ":-1\r\n",
		"no life":                 list(1),
		"no token":                list(1, 5000),
		"token as a number":       list(1, 5000, 7),
		"an impossible life":      list(1, -3, bulk("0")),
		"a named life":            list(1, bulk("5000"), bulk("0")),
		"a field without count":   list(1, 5000, bulk("0"), bulk(me)),
		"a field that is no text": list(1, 5000, bulk("0"), 7, bulk("1")),
		"a count that is nil":     list(1, 5000, bulk("0"), bulk(me), "$-1\r\n"),
		"a second field of nil":   list(1, 5000, bulk("0"), bulk(me), bulk("1"), "$-1\r\n", bulk("1")),
	},
}

// hostile returns a protocol on a server that answers every script with what say was last
// called with.
func hostile(t *testing.T, ttl time.Duration) (p *Plain, reply func(raw string)) {
	relay := redistest.NewRelay(t, redistest.Mini(t).Addr)
	rdb := redis.NewClient(redistest.Options(relay.Addr))
	t.Cleanup(func() { rdb.Close() })
	last := relay.ReplyWith("", redistest.Scripts)
	x := executorOn(t, rdb, clock.System, ttl) // which waits a quarter of it for a reply
	return NewPlain(x, false), func(raw string) {
		last.Remove()
		last = relay.ReplyWith(raw, redistest.Scripts).Always()
	}
}

func TestReply_UnknownOneIsAnErrorAndNoAnswer(t *testing.T) {
	target := keysOf(t, "a", "b")
	p, reply := hostile(t, usualTTL)
	check := func(t *testing.T, call, raw string) {
		reply(raw)
		answer, out := calls[call](p, once, target)
		require.Less(t, len(out.Err.Error()), 1000, call)
		require.False(t, answer, "%s took something from the reply", call)
		require.True(t, out.Ambiguous, "%s: a command may have been executed", call)
		if slices.Contains([]string{nonsense["nil"], nonsense["nil list"]}, raw) {
			require.ErrorContains(t, out.Err, "unexpected nil reply", call)
			require.False(t, out.Permanent, "%s: it may be the client's", call)
			return
		}
		require.ErrorContains(t, out.Err, "unexpected reply", call)
		require.True(t, out.Permanent, "%s: asking again is no use", call)
	}
	for name, raw := range nonsense {
		t.Run(name, func(t *testing.T) {
			for call := range calls {
				check(t, call, raw)
			}
		})
	}
	for call, replies := range lame {
		for name, raw := range replies {
			t.Run(call+" "+name, func(t *testing.T) { check(t, call, raw) })
		}
	}
}

func TestReply_ProtocolViolationIsAnErrorAndNoAnswer(t *testing.T) {
	target := keysOf(t, "a", "b")
	p, reply := hostile(t, MinTTL)
	for _, raw := range []string{
		"-ERR boom\r\n", "-\r\n", "!5\r\nERR x\r\n", "?junk\r\n", "\r\n", ":one\r\n", "*x\r\n", "$x\r\n",
		"%1\r\n" + list(1) + ":1\r\n",
	} {
		t.Run(raw, func(t *testing.T) {
			reply(raw)
			for call, do := range calls {
				answer, out := do(p, once, target)
				require.Error(t, out.Err, call)
				require.False(t, answer, call)
				require.True(t, out.Ambiguous, call)
			}
		})
	}
}

// puppet is a Redis client that answers every command with value.
type puppet struct {
	redis.UniversalClient
	value any
}

func (p *puppet) Process(_ context.Context, cmd redis.Cmder) error {
	cmd.(interface{ SetVal(any) }).SetVal(p.value)
	return nil
}

func TestReply_ErrorShowsTheUnknownReply(t *testing.T) {
	rdb := &puppet{value: []any{int64(0), int64(-2), int64(1), nil}}
	_, out := plainOn(t, rdb).Acquire(t.Context(), once, keysOf(t, "a"), me, termsOf())
	require.EqualError(t, out.Err, "unexpected reply [0 -2 1 <nil>]: no text at 3")
	rdb.value = []any{int64(7), strings.Repeat("x", 1<<20), []any{strings.Repeat("ü", 1<<20)}}
	_, out = plainOn(t, rdb).Acquire(t.Context(), once, keysOf(t, "a"), me, termsOf())
	require.ErrorContains(t, out.Err, "unexpected reply [7 xxx")
	require.Less(t, len(out.Err.Error()), 300)
}

func TestReply_AnswersOfAllScriptsAreUnderstood(t *testing.T) {
	target := keysOf(t, "a", "b")
	rdb := &puppet{}
	p := plainOn(t, rdb)
	answers := func(values ...any) { rdb.value = values }

	answers(int64(1), int64(7))
	g, out := p.Acquire(t.Context(), once, target, me, termsOf())
	mustDo(t, out)
	require.Equal(t, Grant{Held: true, Token: 7}, g)
	rdb.value = int64(1)
	g, out = p.Acquire(t.Context(), once, target, me, termsOf())
	mustDo(t, out)
	require.Equal(t, Grant{Held: true}, g)
	_, out = p.Acquire(t.Context(), once, target, me, termsOf(fencing))
	require.ErrorContains(t, out.Err, "unexpected reply", "a token was asked for")
	answers(int64(0), int64(1500), int64(2), them)
	g, out = p.Acquire(t.Context(), once, target, me, termsOf())
	mustDo(t, out)
	require.Equal(t, Grant{Key: 1, TTL: 1500 * time.Millisecond, Holder: them}, g)
	answers(int64(0), int64(-2), int64(2), them)
	g, out = p.Acquire(t.Context(), once, target, me, termsOf())
	mustDo(t, out)
	require.Equal(t, Grant{Key: 1, Holder: them}, g, "it has just ended: not without expiry")
	for i, name := range []string{`"a"`, `"b"`} {
		answers(int64(-1), int64(i+1))
		_, out = p.Acquire(t.Context(), once, target, me, termsOf())
		refusedAs(t, out, lockerr.ErrInvalidName, name)
		answers(int64(-3), int64(i+1))
		_, out = p.Reenter(t.Context(), once, target, me, termsOf(), true, []int{1, 1})
		refusedAs(t, out, lockerr.ErrInvalidName, "redisson_lock_token:{"+target.Keys[i]+"}")
	}
	for _, want := range []Released{{}, {Receivers: 2}, {Ours: true}, {Ours: true, Receivers: 3}, {Ours: true, Receivers: -1}} {
		answers(int64(0), int64(want.Receivers))
		if want.Ours {
			rdb.value = int64(want.Receivers)
		}
		got, out := p.Release(t.Context(), once, target, me, []int{0, 0})
		mustDo(t, out)
		require.Equal(t, want, got)
	}
}
