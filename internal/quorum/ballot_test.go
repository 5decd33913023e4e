package quorum

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
)

// cast makes a ballot with these votes: y yes, n no, e an error, p a permanent one, ? still
// out.
func cast(attended bool, votes string) *ballot[bool] {
	b := &ballot[bool]{
		question: question[bool]{yes: votesYes, attended: attended},
		majority: len(votes)/2 + 1,
		box:      make(chan indexed[bool], len(votes)),
		report: func(f Failure) error {
			err := error(nil)
			for _, s := range f.Errors {
				err = errors.Join(err, s.Err)
			}
			return err
		},
	}
	for i, v := range votes {
		b.nodes = append(b.nodes, &node{plain: protocol.NewPlain(redisexec.New(nil, clock.System, time.Minute), false), at: i, name: fmt.Sprintf("node-%d", i)})
		err := map[rune]error{'e': lockerr.ErrNoAnswer, 'p': lockerr.ErrInvalidName}[v]
		b.votes = append(b.votes, vote[bool]{
			cast: v != '?', answer: v == 'y',
			out: redisexec.Outcome{Err: err, Ambiguous: v == 'e', Permanent: v == 'p'},
		})
	}
	return b
}

func TestQuorumBallot_LenientOneIsCarriedIfMostAnsweredAndTheRestMightAgree(t *testing.T) {
	for votes, want := range map[string]result{
		"yn?":   undecided,
		"yne":   carried,
		"nne":   rejected,
		"yee":   inconclusive,
		"yyn??": undecided,
		"yynee": carried,
		"ynnee": carried,
		"nnnee": rejected,
		"yynne": carried,
		"yyeee": inconclusive,
		"nnn??": rejected,
	} {
		b := cast(false, votes)
		b.lenient = true
		require.Equal(t, want, b.result(), votes)
		if b.closed = true; want == undecided {
			require.Equal(t, carried, b.result(), votes)
		}
	}
}

func TestQuorumBallot_IsOverWhenItsResultIsCertain(t *testing.T) {
	for _, c := range []struct {
		votes     string
		of, fresh result // of a question about what is held, and of a wish for it
	}{
		{"?", undecided, undecided},
		{"y", carried, carried},
		{"n", rejected, rejected},
		{"e", inconclusive, inconclusive},

		{"y?", undecided, undecided},
		{"yy", carried, carried},
		{"n?", rejected, undecided},
		{"ny", rejected, rejected},
		{"ye", inconclusive, inconclusive},

		{"y??", undecided, undecided},
		{"yy?", carried, carried},
		{"nn?", rejected, rejected},
		{"yn?", undecided, undecided},
		{"ynn", rejected, rejected},
		{"ee?", inconclusive, inconclusive},
		{"en?", undecided, undecided},
		{"yne", inconclusive, rejected},
		{"yee", inconclusive, inconclusive},
		{"nee", inconclusive, inconclusive},
		{"nne", rejected, rejected},
		{"yye", carried, carried},

		{"yy??", undecided, undecided},
		{"yyy?", carried, carried},
		{"yynn", rejected, rejected},
		{"nn??", rejected, undecided},
		{"yyee", inconclusive, inconclusive},

		{"yy???", undecided, undecided},
		{"yyy??", carried, carried},
		{"nnn??", rejected, rejected},
		{"ynee?", inconclusive, undecided},
		{"yynne", inconclusive, rejected},
		{"yyeee", inconclusive, inconclusive},
		{"yyyee", carried, carried},
	} {
		t.Run(c.votes, func(t *testing.T) {
			require.Equal(t, c.of, cast(false, c.votes).result())
			require.Equal(t, c.fresh, cast(true, c.votes).result())
		})
	}
}

func TestQuorumBallot_IsUncertainWhileAnUnansweredNodeMayHaveExecuted(t *testing.T) {
	for votes, doubt := range map[string]bool{"yyy": false, "yy?": true, "yye": true, "yyp": false, "nnn": false, "nn?": true} {
		require.Equal(t, doubt, cast(false, votes).outcome(t.Context()).Ambiguous, votes)
	}
}

func TestQuorumBallot_IsHopelessWhenTooManyNodesAre(t *testing.T) {
	for votes, hopeless := range map[string]bool{"ypp": true, "yep": false, "eee": false, "ppp": true, "yyp": false} {
		out := cast(true, votes).outcome(t.Context())
		require.Equal(t, hopeless, out.Permanent, votes)
		require.Equal(t, votes == "yyp", out.Err == nil, votes)
	}
}

func TestQuorumBallot_UndecidedOneEndsWithItsContext(t *testing.T) {
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	b := cast(true, "yp?")
	require.Equal(t, undecided, b.count(ctx))
	out := b.outcome(ctx)
	require.ErrorIs(t, out.Err, cause)
	require.ErrorIs(t, out.Err, lockerr.ErrInvalidName)
	require.True(t, out.Ambiguous)
	require.ErrorIs(t, cast(true, "y??").outcome(ctx).Err, cause)
}

func TestQuorumBallot_FailureReportsEachNodeThatFailed(t *testing.T) {
	var f Failure
	b := cast(false, "ynep?")
	b.report = func(failed Failure) error {
		f = failed
		return io.EOF
	}
	require.Equal(t, io.EOF, b.failure(errNotYet))
	require.Equal(t, Failure{Nodes: 5, Needed: 3, Agreed: 1, Errors: []NodeError{
		{Node: "node-1", Err: lockerr.ErrNotOnRedis}, {Node: "node-2", Err: lockerr.ErrNoAnswer}, {Node: "node-3", Err: lockerr.ErrInvalidName}, {Node: "node-4", Err: errNotYet},
	}}, f)
}

func refusalOf(votes ...vote[protocol.Grant]) protocol.Grant {
	b := &ballot[protocol.Grant]{votes: votes, majority: len(votes)/2 + 1, question: question[protocol.Grant]{yes: getsIt}}
	return (&Quorum{nodes: make([]*node, len(votes))}).refusal(b)
}

func TestQuorumBallot_RefusalLastsUntilAMajorityCouldBeFree(t *testing.T) {
	free := vote[protocol.Grant]{cast: true, answer: protocol.Grant{Held: true}}
	silent := vote[protocol.Grant]{}
	by := func(holder string, ttl time.Duration) vote[protocol.Grant] {
		return vote[protocol.Grant]{cast: true, answer: protocol.Grant{Holder: holder, TTL: ttl}}
	}
	with := func(key int, v vote[protocol.Grant]) vote[protocol.Grant] {
		v.answer.Key = key
		return v
	}
	const s = time.Second
	for _, c := range []struct {
		votes  []vote[protocol.Grant]
		holder string
		ttl    time.Duration
		split  bool
	}{
		{[]vote[protocol.Grant]{free, with(0, by("a", s)), with(1, by("a", 2*s))}, "a", s, true}, // about to be free: it is not waited for one of them
		{[]vote[protocol.Grant]{with(0, by("b", s)), with(1, by("a", s)), with(1, by("a", 2*s))}, "a", s, false},
		{[]vote[protocol.Grant]{by("a", 3*s), by("a", s), by("a", 2*s)}, "a", 2 * s, false},
		{[]vote[protocol.Grant]{free, by("a", s), by("a", 2*s)}, "a", s, false},
		{[]vote[protocol.Grant]{free, by("a", s), by("b", 2*s)}, "a", s, true},
		{[]vote[protocol.Grant]{free, by("a", s), silent}, "a", s, true},
		{[]vote[protocol.Grant]{by("a", 3*s), by("a", s), silent}, "a", 3 * s, false},
		{[]vote[protocol.Grant]{by("a", -time.Millisecond), by("a", s), by("b", s)}, "a", s, false},
		{[]vote[protocol.Grant]{by("a", -time.Millisecond), by("a", -time.Millisecond), by("b", s)}, "a", -time.Millisecond, false},
	} {
		g := refusalOf(c.votes...)
		require.Equal(t, c.holder, g.Holder)
		require.Equal(t, c.ttl, g.TTL)
		require.Equal(t, c.split, g.Split)
		require.False(t, g.Held)
	}
}

func TestQuorum_StateIsThatOfAMajority(t *testing.T) {
	const s = time.Second
	free := vote[protocol.KeyState]{cast: true, answer: protocol.KeyState{TTL: -2 * time.Millisecond, Token: 7}}
	silent := vote[protocol.KeyState]{}
	by := func(holder string, ttl time.Duration, token int64) vote[protocol.KeyState] {
		return vote[protocol.KeyState]{cast: true, answer: protocol.KeyState{TTL: ttl, Token: token, Fields: []string{holder}, Counts: []int{1}}}
	}
	for _, c := range []struct {
		votes   []vote[protocol.KeyState]
		holder  string
		ttl     time.Duration
		token   int64
		certain bool
	}{
		{[]vote[protocol.KeyState]{by("a", s, 9), by("a", 2*s, 8), by("a", 3*s, 1)}, "a", 2 * s, 9, true},
		{[]vote[protocol.KeyState]{by("a", s, 1), by("a", 2*s, 2), free}, "a", s, 7, true},
		{[]vote[protocol.KeyState]{by("a", s, 1), by("a", 2*s, 2), silent}, "a", s, 2, true},
		{[]vote[protocol.KeyState]{by("a", s, 1), free, free}, "", -2 * time.Millisecond, 7, true},
		{[]vote[protocol.KeyState]{free, free, silent}, "", -2 * time.Millisecond, 7, true},
		{[]vote[protocol.KeyState]{by("a", s, 1), free, silent}, "a", s, 7, false},
		{[]vote[protocol.KeyState]{by("b", s, 1), by("a", s, 2), silent}, "a", s, 2, false},
		{[]vote[protocol.KeyState]{by("a", s, 1), by("b", s, 9), free}, "", -2 * time.Millisecond, 9, true},
		{[]vote[protocol.KeyState]{silent, silent, free}, "", -2 * time.Millisecond, 7, false},
	} {
		k, certain := agreedState(c.votes, 2)
		require.Equal(t, c.certain, certain)
		require.Equal(t, c.holder != "", len(k.Fields) == 1)
		if c.holder != "" {
			require.Equal(t, c.holder, k.Fields[0])
		}
		require.Equal(t, c.ttl, k.TTL)
		require.Equal(t, c.token, k.Token)
	}
}

// A node that is slow has the levels of a moment ago, and a lease as good as any.
func TestQuorum_LevelsAreThoseMostNodesCount(t *testing.T) {
	silent := vote[protocol.KeyState]{}
	counts := func(n int, ttl time.Duration) vote[protocol.KeyState] {
		return vote[protocol.KeyState]{cast: true, answer: protocol.KeyState{TTL: ttl * time.Second, Fields: []string{"a"}, Counts: []int{n}}}
	}
	for _, c := range []struct {
		votes   []vote[protocol.KeyState]
		count   int
		certain bool
	}{
		{[]vote[protocol.KeyState]{counts(1, 1), counts(1, 1), counts(2, 2), counts(2, 2), counts(1, 3)}, 1, true},
		{[]vote[protocol.KeyState]{counts(1, 3), counts(2, 2), counts(1, 1), silent, silent}, 1, false},
		{[]vote[protocol.KeyState]{counts(2, 3), counts(2, 2), counts(2, 1), counts(1, 1), silent}, 2, true},
	} {
		k, certain := agreedState(c.votes, 3)
		require.Equal(t, []int{c.count}, k.Counts)
		require.Equal(t, c.certain, certain)
	}
}
