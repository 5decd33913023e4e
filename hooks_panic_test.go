package relock_test

import (
	"context"
	"log"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// logRecords is a slog.Handler that keeps what is logged, by the attribute "name".
type logRecords struct {
	mu  sync.Mutex
	all map[string][]map[string]any
}

func (r *logRecords) Enabled(context.Context, slog.Level) bool { return true }
func (r *logRecords) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r *logRecords) WithGroup(string) slog.Handler            { return r }

func (r *logRecords) Handle(_ context.Context, record slog.Record) error {
	attrs := map[string]any{"level": record.Level}
	record.Attrs(func(a slog.Attr) bool {
		attrs[a.Key] = a.Value.Any()
		return true
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	name, _ := attrs["name"].(string)
	r.all[name] = append(r.all[name], attrs)
	return nil
}

// of are the records with that name.
func (r *logRecords) of(name string) []map[string]any {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[name]
}

// logged has slog.Default() keep its records until t ends, with all its subtests. t must not be parallel.
func logged(t *testing.T) *logRecords {
	t.Helper()
	before, writer, flags := slog.Default(), log.Writer(), log.Flags()
	t.Cleanup(func() {
		slog.SetDefault(before)
		log.SetOutput(writer)
		log.SetFlags(flags)
	})
	r := &logRecords{all: make(map[string][]map[string]any)}
	slog.SetDefault(slog.New(r))
	return r
}

// panicking returns hooks that all record their events in r, and panic.
func panicking(r *chronicle) relock.Hooks {
	hooks := r.Hooks()
	eachHook(&hooks, func(_ string, hook *func(relock.Event)) {
		record := *hook
		*hook = func(e relock.Event) {
			record(e)
			panic("in a hook")
		}
	})
	return hooks
}

// A Lock that waits without success, one that waits and gets the lock, a renewal, an Unlock, and a loss.
func TestHooks_PanicsAreReportedOnceAndChangeNothing(t *testing.T) {
	records := logged(t)
	eachKind(t, func(t *testing.T, backend *redistest.Backend, k lockKind) {
		b := newKindBench(t, backend, k)
		var r chronicle
		m := b.mutex(relock.WithHooks(panicking(&r)), relock.WithRenewInterval(20*time.Millisecond))

		b.me.Locks(t, b.rival())
		ctx, giveUp := context.WithCancel(t.Context())
		defer giveUp()
		waiting := b.you.Lock(ctx, m)
		redistest.Eventually(t, "a wait", func() bool { return len(r.Of("contended")) == 1 })
		giveUp()
		require.ErrorIs(t, locktest.OutcomeOf(t, waiting), context.Canceled)
		require.Equal(t, []string{"contended", "failed"}, r.Names())
		require.Equal(t, relock.OutcomeCancelled, r.Of("failed")[0].Outcome)
		require.True(t, r.Of("failed")[0].Waited)

		waiting = b.you.Lock(t.Context(), m)
		redistest.Eventually(t, "a wait", func() bool { return len(r.Of("contended")) == 2 })
		b.me.Unlocks(t, b.rival())
		require.NoError(t, locktest.OutcomeOf(t, waiting))
		redistest.Eventually(t, "renewals", func() bool { return len(r.Of("renewed")) > 1 })
		b.you.Unlocks(t, m)
		require.Len(t, r.Of("released"), 1)

		b.you.Locks(t, m)
		b.on(func(rdb redis.UniversalClient) bool { return rdb.Del(t.Context(), b.key).Err() == nil })
		redistest.Eventually(t, "the loss", func() bool { return len(r.Of("lost")) == 1 })
		require.ErrorIs(t, b.you.Call(m.Unlock), relock.ErrLost)

		byHook := make(map[string]int) // how often, by hook
		for _, e := range r.All() {
			byHook[strings.ReplaceAll(e.Hook, " ", "")]++
		}
		reported := func() map[string]int {
			hooks := make(map[string]int)
			for _, record := range records.of(m.Name()) {
				hooks[strings.ToLower(record["hook"].(string))]++
			}
			return hooks
		}
		redistest.Eventually(t, "the last report", func() bool { return reported()["lost"] == 1 })
		require.Equal(t, byHook, reported())
		for _, record := range records.of(m.Name()) {
			require.Equal(t, slog.LevelError, record["level"])
			require.Equal(t, "in a hook", record["panic"])
			require.Contains(t, record["stack"], "relock_test.panicking.")
		}
	})
}

// The MultiMutex has its two names by two holds: the first of them was there before.
func TestHooks_PanicInOnePartOfAnUnlockKeepsNoOtherPartLocked(t *testing.T) {
	records := logged(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, names := b.Client(t), locktest.NamesFrom(redistest.Key(t), 2)
		var r chronicle
		c := relock.LocksOn(t, rdb, relock.WithHooks(panicking(&r)))
		one, both := c.Mutex(names[0]), c.MultiMutex(names)
		locktest.RequireLocked(t, one)
		locktest.RequireLocked(t, both)
		locktest.RequireUnlocked(t, one)
		locktest.RequireUnlocked(t, both)
		require.Len(t, r.Of("released"), 2)
		require.Len(t, records.of(one.Name()), 2)
		require.Len(t, records.of(both.Name()), 2)
		locktest.RequireFree(t, rdb, names...)
		require.Zero(t, relock.NamesOf(c))
	})
}
