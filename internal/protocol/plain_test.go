package protocol

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// situation is a state of a lock's key, and what a script makes of it.
type situation struct {
	name   string
	before picture
	// after is what it looks like then, and reply what the script said, as the tests print
	// it. Nothing may be published unless requested.
	after  picture
	reply  string
	grants bool
}

// untouched is a situation that the script must leave alone.
func untouched(name string, p picture, reply string) situation {
	return situation{name: name, before: p, after: p, reply: reply}
}

// heldByOthers are the states of a key that is another owner's, with one reply for each kind:
// another owner, another type, a read-write lock.
func heldByOthers(held, kind, mode string) []situation {
	return []situation{
		untouched("held by another owner", hashOf(short, them, "1"), held),
		untouched("held twice by another owner", hashOf(long, them, "2"), held),
		untouched("held without expiry", hashOf(forever, them, "1"), held),
		untouched("a string", textOf(short, "x"), kind),
		untouched("a string without expiry", textOf(forever, "1"), kind),
		untouched("a list", listOf(forever), kind),
		untouched("a write lock", hashOf(short, "mode", "write", them+":write", "1"), mode),
		untouched("a read lock", hashOf(short, "mode", "read", them, "1"), mode),
	}
}

// check runs a script once in every situation, and then again: what it did once, it may
// do any number of times.
func (b *bench) check(situations []situation, run func(b *bench, t *keys.Set) string) {
	for _, s := range situations {
		target := b.target(1)
		b.paint(target.Keys[0], s.before)

		messages := b.messages(target, func() { require.Equal(b.t, s.reply, run(b, target), s.name) })
		require.Equal(b.t, s.after, b.look(target.Keys[0]), s.name)
		want := [][]string{nil}
		if s.grants {
			want = [][]string{{"0"}}
		}
		require.Equal(b.t, want, messages, s.name)

		messages = b.messages(target, func() { run(b, target) })
		require.Equal(b.t, s.after, b.look(target.Keys[0]), "%s, after the replay", s.name)
		require.Equal(b.t, [][]string{nil}, messages, "%s: nobody is woken by a replay", s.name)
		require.Equal(b.t, absent, b.look(target.Counters[0]), "%s: no token was wished", s.name)
	}
}

// granted words the answer to a wish.
func granted(g Grant, out redisexec.Outcome) string {
	switch {
	case out.Err != nil:
		return refusal(out)
	case g.Held:
		return fmt.Sprint("held, token ", g.Token)
	case g.Holder != "":
		return "busy: " + g.Holder
	default:
		return "lost"
	}
}

// refusal words the error of a script that changed nothing.
func refusal(out redisexec.Outcome) string {
	switch {
	case out.Ambiguous || !out.Permanent:
		return fmt.Sprintf("unsure: %v", out.Err)
	case !errors.Is(out.Err, lockerr.ErrInvalidName):
		return fmt.Sprintf("refused: %v", out.Err)
	case strings.Contains(out.Err.Error(), "another type"):
		return "another type"
	case strings.Contains(out.Err.Error(), "read-write lock"):
		return "read-write lock"
	}
	return out.Err.Error()
}

func yes(ok bool, out redisexec.Outcome) string {
	if out.Err != nil {
		return refusal(out)
	}
	return fmt.Sprint(ok)
}

func TestAcquire_TakesAFreeKeyAndLeavesOthers(t *testing.T) {
	eachBench(t, func(t *testing.T, b *bench) {
		held := "held, token 0"
		b.check(append(heldByOthers("busy: "+them, "another type", "read-write lock"),
			situation{name: "absent", before: absent, after: hashOf(asked, me, "1"), reply: held},
			situation{name: "mine", before: hashOf(short, me, "1"), after: hashOf(asked, me, "1"), reply: held},
			situation{name: "mine for longer", before: hashOf(long, me, "1"), after: hashOf(long, me, "1"), reply: held},
			situation{name: "mine without expiry", before: hashOf(forever, me, "1"), after: hashOf(asked, me, "1"), reply: held},
			// A copy that arrives after a level was added must not take it away again.
			situation{name: "mine twice", before: hashOf(short, me, "2"), after: hashOf(asked, me, "2"), reply: held},
			untouched("mine and another owner's", hashOf(short, "a:1", "1", me, "1"), "busy: a:1"),
		), func(b *bench, target *keys.Set) string {
			return granted(b.Acquire(b.t.Context(), options, target, me, termsOf()))
		})
	})
}

func TestReenter_SetsTheCountAndNeverMakesAHold(t *testing.T) {
	eachBench(t, func(t *testing.T, b *bench) {
		held := "held, token 0"
		b.check(append(heldByOthers("lost", "lost", "lost"),
			untouched("absent", absent, "lost"),
			situation{name: "mine", before: hashOf(short, me, "1"), after: hashOf(asked, me, "3"), reply: held},
			situation{name: "mine for longer", before: hashOf(long, me, "2"), after: hashOf(long, me, "3"), reply: held},
			situation{name: "mine more often", before: hashOf(short, me, "9"), after: hashOf(asked, me, "3"), reply: held},
			situation{name: "mine without expiry", before: hashOf(forever, me, "1"), after: hashOf(asked, me, "3"), reply: held},
		), func(b *bench, target *keys.Set) string {
			return granted(b.Reenter(b.t.Context(), options, target, me, termsOf(), false, []int{3}))
		})
	})
}

func TestRenew_LengthensALeaseAndCreatesNothing(t *testing.T) {
	eachBench(t, func(t *testing.T, b *bench) {
		b.check(append(heldByOthers("false", "false", "false"),
			untouched("absent", absent, "false"),
			situation{name: "mine", before: hashOf(short, me, "1"), after: hashOf(asked, me, "1"), reply: "true"},
			situation{name: "mine twice", before: hashOf(short, me, "2"), after: hashOf(asked, me, "2"), reply: "true"},
			untouched("mine for longer", hashOf(long, me, "1"), "true"),
			situation{name: "mine without expiry", before: hashOf(forever, me, "1"), after: hashOf(asked, me, "1"), reply: "true"},
		), func(b *bench, target *keys.Set) string {
			return yes(b.Renew(b.t.Context(), options, target, me, asked))
		})
		b.check(append(heldByOthers("false", "false", "false"),
			untouched("absent", absent, "false"),
			situation{name: "mine", before: hashOf(short, me, "1"), after: hashOf(asked, me, "1"), reply: "true"},
			untouched("mine for longer", hashOf(long, me, "1"), "true"),
			situation{name: "mine without expiry", before: hashOf(forever, me, "1"), after: hashOf(asked, me, "1"), reply: "true"},
		), func(b *bench, target *keys.Set) string {
			lost, out := b.renewMany(b.t.Context(), options, target.Locks(), []any{me}, asked)
			return yes(lost == nil, out)
		})
	})
}

// What a release replied, in words.
const (
	notOurs = "not ours, received by 0"
	quietly = "ours, received by 0"
)

func textOfRelease(r Released) string {
	if r.Ours {
		return fmt.Sprintf("ours, received by %d", r.Receivers)
	}
	return fmt.Sprintf("not ours, received by %d", r.Receivers)
}

func TestRelease_FreesTheOwnHoldAndNotifiesOnce(t *testing.T) {
	eachBench(t, func(t *testing.T, b *bench) {
		grants := "ours, received by 1"
		b.check(append(heldByOthers(notOurs, notOurs, notOurs),
			untouched("absent", absent, notOurs),
			situation{name: "mine", before: hashOf(short, me, "1"), after: absent, reply: grants, grants: true},
			situation{name: "mine twice", before: hashOf(long, me, "2"), after: absent, reply: grants, grants: true},
			situation{name: "mine without expiry", before: hashOf(forever, me, "1"), after: absent, reply: grants, grants: true},
			situation{name: "mine and another owner's", before: hashOf(short, me, "1", them, "1"), after: hashOf(short, them, "1"), reply: grants, grants: true},
		), func(b *bench, target *keys.Set) string {
			status, out := b.Release(b.t.Context(), options, target, me, []int{0})
			mustDo(b.t, out)
			return textOfRelease(status)
		})
	})
}

func TestRelease_OfALevelSetsTheCountSilently(t *testing.T) {
	eachBench(t, func(t *testing.T, b *bench) {
		b.check(append(heldByOthers(notOurs, notOurs, notOurs),
			untouched("absent", absent, notOurs),
			situation{name: "mine twice", before: hashOf(short, me, "2"), after: hashOf(short, me, "1"), reply: quietly},
			situation{name: "mine more often", before: hashOf(long, me, "5"), after: hashOf(long, me, "1"), reply: quietly},
			untouched("mine", hashOf(short, me, "1"), quietly),
			untouched("mine without expiry", hashOf(forever, me, "1"), quietly),
		), func(b *bench, target *keys.Set) string {
			status, out := b.Release(b.t.Context(), options, target, me, []int{1})
			mustDo(b.t, out)
			return textOfRelease(status)
		})
	})
}

func TestHandoff_PassesAHoldOnSilently(t *testing.T) {
	eachBench(t, func(t *testing.T, b *bench) {
		held, passed := "held, token 0", hashOf(asked, you, "1")
		b.check(append(heldByOthers("lost", "lost", "lost"),
			untouched("absent", absent, "lost"),
			situation{name: "mine", before: hashOf(short, me, "1"), after: passed, reply: held},
			situation{name: "mine twice", before: hashOf(short, me, "2"), after: passed, reply: held},
			situation{name: "mine for longer", before: hashOf(long, me, "1"), after: passed, reply: held},
			situation{name: "mine without expiry", before: hashOf(forever, me, "1"), after: passed, reply: held},
			situation{name: "passed before", before: hashOf(short, you, "1"), after: passed, reply: held},
			untouched("passed before for longer", hashOf(long, you, "1"), held),
			// A copy that arrives after the new owner added a level must not take it away.
			situation{name: "passed before and entered again", before: hashOf(short, you, "2"), after: hashOf(asked, you, "2"), reply: held},
		), func(b *bench, target *keys.Set) string {
			return granted(b.Handoff(b.t.Context(), options, target, me, you, termsOf()))
		})
	})
}

func TestBatch_RenameReportsTheLastOwnerAndShortensNoLease(t *testing.T) {
	eachBench(t, func(t *testing.T, b *bench) {
		known := hashOf(asked, you, "1")
		b.check(append(heldByOthers("false", "false", "false"),
			untouched("absent", absent, "false"),
			situation{name: "mine", before: hashOf(short, me, "1"), after: known, reply: "true"},
			situation{name: "mine twice", before: hashOf(short, me, "2"), after: known, reply: "true"},
			situation{name: "mine for longer", before: hashOf(long, me, "1"), after: hashOf(long, you, "1"), reply: "true"},
			situation{name: "mine without expiry", before: hashOf(forever, me, "1"), after: known, reply: "true"},
			situation{name: "renamed before", before: hashOf(short, you, "1"), after: known, reply: "true"},
			untouched("renamed before for longer", hashOf(long, you, "1"), "true"),
			// A copy that arrives after the new owner added a level must not take it away.
			situation{name: "renamed before and entered again", before: hashOf(short, you, "2"), after: hashOf(asked, you, "2"), reply: "true"},
		), func(b *bench, target *keys.Set) string {
			ours, _, out := b.Rename(b.t.Context(), options, target, me, you, asked)
			return yes(ours, out)
		})
		b.check([]situation{
			{name: "back, with a count in doubt", before: hashOf(short, me, "2"), after: hashOf(asked, me, "1"), reply: "true"},
		}, func(b *bench, target *keys.Set) string {
			ours, _, out := b.Rename(b.t.Context(), options, target, me, me, asked)
			return yes(ours, out)
		})
	})
}

func TestForce_DeletesOnlyTheHoldThatWasSeen(t *testing.T) {
	eachBench(t, func(t *testing.T, b *bench) {
		situations := []situation{
			untouched("absent", absent, "false"),
			untouched("another's", hashOf(short, you, "1"), "false"),
			untouched("one more's", hashOf(short, them, "1", you, "1"), "false"),
			untouched("a string", textOf(short, "x"), "false"),
			untouched("a list", listOf(forever), "false"),
		}
		b.check(append(situations,
			situation{name: "held", before: hashOf(short, them, "1"), after: absent, reply: "true", grants: true},
			situation{name: "held twice", before: hashOf(long, them, "2"), after: absent, reply: "true", grants: true},
			situation{name: "held without expiry", before: hashOf(forever, them, "1"), after: absent, reply: "true", grants: true},
		), func(b *bench, target *keys.Set) string {
			return yes(b.Force(b.t.Context(), options, target, 0, []string{them}))
		})
	})
}

func TestForce_DeletesAHashIfAllFieldsWereSeen(t *testing.T) {
	eachBench(t, func(t *testing.T, b *bench) {
		target := b.target(1)
		both := hashOf(short, me, "1", them, "1")
		b.paint(target.Keys[0], both)
		for _, seen := range [][]string{{me}, {me, you}, {me, them, you}} {
			done, out := b.Force(t.Context(), options, target, 0, seen)
			mustDo(t, out)
			require.False(t, done)
			require.Equal(t, both, b.look(target.Keys[0]))
		}
		done, out := b.Force(t.Context(), options, target, 0, []string{them, me})
		mustDo(t, out)
		require.True(t, done)
		require.Equal(t, absent, b.look(target.Keys[0]))
	})
}

func TestState_ReportsTheHolderAndChangesNothing(t *testing.T) {
	eachBench(t, func(t *testing.T, b *bench) {
		b.check([]situation{
			untouched("absent", absent, "held by [], [] times, for -2ms, token 0"),
			untouched("held", hashOf(short, them, "1"), "held by [uuid-2:7], [1] times, for 1m40s, token 0"),
			untouched("held twice", hashOf(long, me, "2"), "held by [uuid-1:7], [2] times, for 2h30m0s, token 0"),
			untouched("held without expiry", hashOf(forever, me, "1"), "held by [uuid-1:7], [1] times, for -1ms, token 0"),
			untouched("held by two", hashOf(short, me, "1", them, "2"), "held by [uuid-1:7 uuid-2:7], [1 2] times, for 1m40s, token 0"),
			untouched("a count that is no number", hashOf(short, me, "many"), "another type"),
			untouched("a field that is nobody's", hashOf(short, "visits", "7"), "another type"),
			untouched("a string", textOf(short, "x"), "another type"),
			untouched("a list", listOf(forever), "another type"),
			untouched("a read-write lock", hashOf(short, "mode", "write", them+":write", "1"), "read-write lock"),
		}, func(b *bench, target *keys.Set) string {
			s, out := b.State(b.t.Context(), options, target, 0)
			if out.Err != nil {
				return refusal(out)
			}
			mustDo(b.t, out)
			if s.TTL > 0 {
				s.TTL = redistest.Life(b.t, b.rdb, target.Keys[0])
			}
			return fmt.Sprintf("held by %v, %v times, for %v, token %d", s.Fields, s.Counts, s.TTL, s.Token)
		})
	})
}

func TestState_ReadsAnyCounter(t *testing.T) {
	eachBench(t, func(t *testing.T, b *bench) {
		target := b.target(1)
		for _, c := range []struct {
			counter picture
			token   int64
		}{
			{absent, 0},
			{textOf(forever, "1700000000000001"), 1700000000000001},
			{textOf(forever, "garbage"), 0},
			{textOf(forever, "99999999999999999999"), 0},
			{hashOf(forever, "a", "b"), 0},
		} {
			b.paint(target.Counters[0], c.counter)
			for _, key := range []picture{absent, hashOf(short, me, "1")} {
				b.paint(target.Keys[0], key)
				s, out := b.State(t.Context(), options, target, 0)
				mustDo(t, out)
				require.Equal(t, c.token, s.Token, "of counter %v", c.counter)
				require.Equal(t, c.counter, b.look(target.Counters[0]))
			}
		}
	})
}

func TestState_DoesNotReadAnOversizedHash(t *testing.T) {
	eachBench(t, func(t *testing.T, b *bench) {
		target := b.target(1)
		var pairs []string
		for i := range 20000 {
			pairs = append(pairs, fmt.Sprint("field", i), "1")
		}
		require.NoError(t, b.rdb.HSet(t.Context(), target.Keys[0], pairs).Err())
		_, out := b.Acquire(t.Context(), options, target, me, termsOf())
		refusedAs(t, out, lockerr.ErrInvalidName, "is not a lock")
		_, out = b.State(t.Context(), options, target, 0)
		refusedAs(t, out, lockerr.ErrInvalidName, "not a lock")
	})
}

func TestAcquire_RefusalReportsTheHoldersTTL(t *testing.T) {
	eachBench(t, func(t *testing.T, b *bench) {
		target := b.target(1)
		b.paint(target.Keys[0], hashOf(short, them, "1"))
		g, out := b.Acquire(t.Context(), options, target, me, termsOf())
		mustDo(t, out)
		require.LessOrEqual(t, g.TTL, short)
		require.Greater(t, g.TTL, short/2)

		b.paint(target.Keys[0], hashOf(forever, them, "1"))
		g, out = b.Acquire(t.Context(), options, target, me, termsOf())
		mustDo(t, out)
		require.Equal(t, forever, g.TTL)
	})
}
