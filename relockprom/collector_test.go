package relockprom_test

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/pagetest"
	"github.com/relock-go/relock/relockprom"
)

func TestCollector_CountsEachEvent(t *testing.T) {
	c, registry := registered(t)
	hooks := c.Hooks()
	mutex := relock.Event{Name: "orders:1", Kind: relock.KindMutex, Elapsed: 3 * time.Millisecond}
	with := func(change func(e *relock.Event)) relock.Event {
		e := mutex
		change(&e)
		return e
	}
	hooks.Contended(mutex)
	hooks.Contended(mutex)
	hooks.Contended(mutex)
	hooks.Acquired(with(func(e *relock.Event) { e.Outcome, e.Waited = relock.OutcomeAcquired, true }))
	hooks.Acquired(with(func(e *relock.Event) { e.Outcome = relock.OutcomeAcquired }))
	hooks.Acquired(with(func(e *relock.Event) { e.Outcome = relock.OutcomeAcquired }))
	hooks.Acquired(with(func(e *relock.Event) { e.Outcome = relock.OutcomeAcquired }))
	hooks.Failed(with(func(e *relock.Event) { e.Outcome, e.Waited = relock.OutcomeTimedOut, true }))
	hooks.Failed(with(func(e *relock.Event) { e.Outcome = relock.OutcomeBusy }))
	hooks.Renewed(mutex)
	hooks.Renewed(mutex)
	hooks.RenewFailed(mutex)
	hooks.Released(mutex)
	hooks.Released(with(func(e *relock.Event) { e.Err = errors.New("released locally, but not confirmed by Redis") }))
	hooks.Lost(with(func(e *relock.Event) { e.Cause = relock.LossExpired }))
	hooks.Acquired(relock.Event{Kind: relock.KindRW, Side: relock.SideRead, Outcome: relock.OutcomeAcquired})

	require.Equal(t, samples{
		`relock_acquisitions_total{kind="mutex",result="acquired"}`:          4,
		`relock_acquisitions_total{kind="mutex",result="timeout"}`:           1,
		`relock_acquisitions_total{kind="mutex",result="busy"}`:              1,
		`relock_acquisitions_total{kind="rw",result="acquired",side="read"}`: 1,
		`relock_wait_seconds{kind="mutex",result="acquired"}`:                4,
		`relock_wait_seconds{kind="mutex",result="timeout"}`:                 1,
		`relock_wait_seconds{kind="mutex",result="busy"}`:                    1,
		`relock_wait_seconds{kind="rw",result="acquired",side="read"}`:       1,
		`relock_contended_total{kind="mutex"}`:                               3,
		`relock_waiting{kind="mutex"}`:                                       1,
		`relock_held{kind="mutex"}`:                                          1,
		`relock_held{kind="rw",side="read"}`:                                 1,
		`relock_hold_seconds{end="released",kind="mutex"}`:                   2,
		`relock_hold_seconds{end="lost",kind="mutex"}`:                       1,
		`relock_renewals_total{kind="mutex",result="renewed"}`:               2,
		`relock_renewals_total{kind="mutex",result="failed"}`:                1,
		`relock_renew_seconds{kind="mutex",result="renewed"}`:                2,
		`relock_renew_seconds{kind="mutex",result="failed"}`:                 1,
		`relock_losses_total{cause="expired",kind="mutex"}`:                  1,
	}, gathered(t, registry).nonzero())
}

func TestCollector_AddsUpTheWeightOfPermits(t *testing.T) {
	c, registry := registered(t)
	hooks := c.Hooks()
	permit := func(weight int) relock.Event {
		return relock.Event{Name: "llm", Kind: relock.KindSemaphore, Weight: weight, Outcome: relock.OutcomeAcquired}
	}
	for _, weight := range []int{1, 3, 5, 7} {
		hooks.Acquired(permit(weight))
	}
	hooks.Failed(permit(20))
	hooks.Released(permit(3))
	hooks.Lost(permit(5))
	hooks.Acquired(relock.Event{Kind: relock.KindMutex, Outcome: relock.OutcomeAcquired})
	s := gathered(t, registry)
	require.Equal(t, samples{`relock_permits{kind="semaphore"}`: 8}, s.of("relock_permits"), "and of no other kind")
	require.Equal(t, 2.0, s[`relock_held{kind="semaphore"}`])
}

// A lock that Redis does not have any more is a loss, though it was Unlock that found out.
func TestCollector_CountsALossThatUnlockFinds(t *testing.T) {
	c, registry := registered(t)
	e := relock.Event{Kind: relock.KindMutex, Outcome: relock.OutcomeAcquired}
	c.Hooks().Acquired(e)
	e.Err, e.Cause = fmt.Errorf("%w: the key is gone", relock.ErrLost), relock.LossGone
	c.Hooks().Released(e)
	s := gathered(t, registry)
	require.Equal(t, 1.0, s[`relock_losses_total{cause="gone",kind="mutex"}`])
	require.Equal(t, 1.0, s[`relock_hold_seconds{end="lost",kind="mutex"}`])
	require.Zero(t, s.sum("relock_held"))
}

// The hold had ended before; the next one was lost before Redis had the end of this one.
func TestCollector_DoesNotCountALossThatOnlyDelaysTheRelease(t *testing.T) {
	c, registry := registered(t)
	e := relock.Event{Kind: relock.KindMutex, Outcome: relock.OutcomeAcquired}
	c.Hooks().Acquired(e)
	e.Err, e.Cause = errors.New("released locally, but not confirmed by Redis: forced open by ForceUnlock"), relock.LossForced
	c.Hooks().Released(e)
	s := gathered(t, registry)
	require.Zero(t, s.sum("relock_losses_total"))
	require.Equal(t, 1.0, s[`relock_hold_seconds{end="released",kind="mutex"}`])
	require.Zero(t, s.sum("relock_held"))
}

func TestCollector_TimesAreSeconds(t *testing.T) {
	c, registry := registered(t)
	e := relock.Event{Kind: relock.KindMutex, Outcome: relock.OutcomeAcquired, Elapsed: 1500 * time.Millisecond}
	c.Hooks().Acquired(e)
	c.Hooks().Renewed(e)
	c.Hooks().Released(e)
	families, err := registry.Gather()
	require.NoError(t, err)
	seen := 0
	for _, family := range families {
		if strings.HasSuffix(family.GetName(), "_seconds") {
			seen++
			require.Equal(t, 1.5, family.Metric[0].Histogram.GetSampleSum(), family.GetName())
		}
	}
	require.Equal(t, 3, seen)
}

// A counter that begins at 1 has no increase.
func TestCollector_CountersBeginAtZeroWithTheFirstEvent(t *testing.T) {
	c, registry := registered(t)
	require.Empty(t, gathered(t, registry))
	c.Hooks().Contended(relock.Event{Kind: relock.KindFair})
	s := gathered(t, registry)
	for _, zero := range []string{
		`relock_acquisitions_total{kind="fair",result="acquired"}`,
		`relock_acquisitions_total{kind="fair",result="busy"}`,
		`relock_acquisitions_total{kind="fair",result="timeout"}`,
		`relock_acquisitions_total{kind="fair",result="cancelled"}`,
		`relock_acquisitions_total{kind="fair",result="deadlock"}`,
		`relock_acquisitions_total{kind="fair",result="error"}`,
		`relock_renewals_total{kind="fair",result="renewed"}`,
		`relock_renewals_total{kind="fair",result="failed"}`,
		`relock_losses_total{cause="expired",kind="fair"}`,
		`relock_losses_total{cause="gone",kind="fair"}`,
		`relock_losses_total{cause="forced",kind="fair"}`,
		`relock_held{kind="fair"}`,
	} {
		value, found := s[zero]
		require.True(t, found, zero)
		require.Zero(t, value, zero)
	}
	require.Len(t, s, 14)
}

func TestCollector_SeriesOfAClassAreAsManyAsDocumented(t *testing.T) {
	documented := regexp.MustCompile(`Each class costs (\d+) series \(a semaphore\s+(?://\s+)?(\d+)\)`).FindStringSubmatch(pagetest.Read(t, "options.go"))
	require.NotNil(t, documented)
	for kind, number := range map[relock.LockKind]string{relock.KindMutex: documented[1], relock.KindSemaphore: documented[2]} {
		c, registry := registered(t, relockprom.WithNameClass(firstPart))
		c.Hooks().Contended(relock.Event{Name: "orders:1", Kind: kind})
		require.Equal(t, number, strconv.Itoa(len(gathered(t, registry))), kind)
	}
}

func TestCollector_NameOfALockIsNoLabel(t *testing.T) {
	for _, opts := range [][]relockprom.Option{nil, {relockprom.WithNameClass(func(string) string { return "orders" })}} {
		c, registry := registered(t, opts...)
		e := relock.Event{Name: "SECRET", OwnerID: "SECRET", Owner: "SECRET", Token: 4711, Kind: relock.KindMutex}
		e.Outcome, e.Err, e.Cause = relock.OutcomeError, errors.New("SECRET"), relock.LossGone
		hooks := c.Hooks()
		for _, hook := range []func(relock.Event){
			hooks.Acquired, hooks.Contended, hooks.Failed, hooks.Released, hooks.Renewed, hooks.RenewFailed, hooks.Lost,
		} {
			hook(e)
		}
		for series := range gathered(t, registry) {
			require.NotContains(t, series, "SECRET")
			require.NotContains(t, series, "4711")
			require.Equal(t, opts != nil, strings.Contains(series, `class="orders"`), series)
		}
	}
}

func firstPart(name string) string {
	class, _, _ := strings.Cut(name, ":")
	return class
}

func TestCollector_EachClassIsCountedByItself(t *testing.T) {
	c, registry := registered(t, relockprom.WithNameClass(firstPart))
	for _, name := range []string{"orders:1", "orders:2", "carts:1"} {
		c.Hooks().Acquired(relock.Event{Name: name, Kind: relock.KindMutex, Outcome: relock.OutcomeAcquired})
	}
	require.Equal(t, samples{
		`relock_held{class="orders",kind="mutex"}`: 2,
		`relock_held{class="carts",kind="mutex"}`:  1,
	}, gathered(t, registry).of("relock_held"))
}

// The names of locks have no end, and a function that returns them must not fill the memory. What was
// begun in a class ends in it.
func TestCollector_ClassesAreBounded(t *testing.T) {
	c, registry := registered(t, relockprom.WithNameClass(func(name string) string { return name }))
	const names = 1000
	event := func(i int) relock.Event {
		return relock.Event{Name: fmt.Sprint("orders:", i), Kind: relock.KindMutex, Outcome: relock.OutcomeAcquired}
	}
	for i := range names {
		c.Hooks().Acquired(event(i))
	}
	held := gathered(t, registry).of("relock_held")
	require.Len(t, held, 100+1)
	require.Equal(t, float64(names-100), held[`relock_held{class="other",kind="mutex"}`])
	for i := range names {
		c.Hooks().Released(event(i))
	}
	require.Empty(t, gathered(t, registry).of("relock_held").nonzero())
}

func TestCollector_ClassMayBeAnyText(t *testing.T) {
	for _, class := range []string{"", "\xff", "a\"b\n\\", "日本", strings.Repeat("x", 10_000)} {
		c, registry := registered(t, relockprom.WithNameClass(func(string) string { return class }))
		c.Hooks().Acquired(relock.Event{Kind: relock.KindMutex, Outcome: relock.OutcomeAcquired})
		require.Equal(t, 1.0, newEndpoint(t, registry).scrape(t).sum("relock_held"), "%q", class)
	}
}

func TestCollector_BadOptionsAreRefused(t *testing.T) {
	for _, bad := range []struct {
		option relockprom.Option
		says   string
	}{
		{nil, "option 2 of 2 is nil"},
		{relockprom.WithNameClass(nil), "WithNameClass: the function is nil"},
		{relockprom.WithBuckets(relockprom.Buckets{Wait: []float64{1, 2, 2}}), "WithBuckets: Wait: bounds not in ascending order: 2 before 2"},
		{relockprom.WithBuckets(relockprom.Buckets{Hold: []float64{1, .5}}), "WithBuckets: Hold: bounds not in ascending order: 1 before 0.5"},
		{relockprom.WithBuckets(relockprom.Buckets{Renew: []float64{math.NaN()}}), "WithBuckets: Renew: bound 1 is not a number"},
	} {
		c, err := relockprom.NewCollector(relockprom.WithNativeHistograms(), bad.option)
		require.Nil(t, c)
		require.ErrorIs(t, err, relock.ErrInvalidOption)
		require.ErrorContains(t, err, "relockprom: ")
		require.ErrorContains(t, err, bad.says)
	}
}

func TestCollector_BucketsAreThoseRequested(t *testing.T) {
	wait := []float64{1, 2}
	c, registry := registered(t, relockprom.WithBuckets(relockprom.Buckets{Wait: wait}),
		relockprom.WithBuckets(relockprom.Buckets{Renew: []float64{3}}))
	wait[0] = 4 // the caller's
	e := relock.Event{Kind: relock.KindMutex, Outcome: relock.OutcomeAcquired, Elapsed: time.Second}
	c.Hooks().Acquired(e)
	c.Hooks().Renewed(e)
	c.Hooks().Released(e)
	families, err := registry.Gather()
	require.NoError(t, err)
	bounds := make(map[string][]float64)
	for _, family := range families {
		for _, bucket := range family.Metric[0].GetHistogram().GetBucket() {
			bounds[family.GetName()] = append(bounds[family.GetName()], bucket.GetUpperBound())
		}
		require.Empty(t, family.Metric[0].GetHistogram().GetPositiveSpan())
	}
	require.Equal(t, []float64{1, 2}, bounds["relock_wait_seconds"])
	require.Equal(t, []float64{3}, bounds["relock_renew_seconds"])
	hold := bounds["relock_hold_seconds"]
	require.Equal(t, []float64{.001, 3600}, []float64{hold[0], hold[len(hold)-1]})
	require.True(t, slices.IsSorted(hold))
}

func TestCollector_HistogramsAreNativeOnRequest(t *testing.T) {
	c, registry := registered(t, relockprom.WithNativeHistograms())
	c.Hooks().Acquired(relock.Event{Kind: relock.KindMutex, Outcome: relock.OutcomeAcquired, Elapsed: time.Second})
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() == "relock_wait_seconds" {
			require.NotEmpty(t, family.Metric[0].Histogram.GetPositiveSpan())
			require.NotEmpty(t, family.Metric[0].Histogram.GetBucket())
			return
		}
	}
	t.Fatal("no relock_wait_seconds")
}

// Two Redis servers, say: the label that distinguishes them is the registerer's.
func TestCollector_SeveralShareARegistry(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	for _, server := range []string{"a", "b"} {
		c, _ := registered(t)
		registerer := prometheus.WrapRegistererWith(prometheus.Labels{"redis": server}, registry)
		require.NoError(t, registerer.Register(c))
		require.ErrorAs(t, registerer.Register(c), new(prometheus.AlreadyRegisteredError))
		c.Hooks().Acquired(relock.Event{Kind: relock.KindMutex, Outcome: relock.OutcomeAcquired})
	}
	require.Equal(t, samples{
		`relock_held{kind="mutex",redis="a"}`: 1,
		`relock_held{kind="mutex",redis="b"}`: 1,
	}, gathered(t, registry).of("relock_held"))
}

func TestCollector_NamesPassPrometheusLint(t *testing.T) {
	c, _ := registered(t, relockprom.WithNameClass(firstPart))
	e := relock.Event{Kind: relock.KindMutex, Outcome: relock.OutcomeAcquired}
	c.Hooks().Acquired(e)
	c.Hooks().Renewed(e)
	c.Hooks().Released(e)
	problems, err := testutil.CollectAndLint(c)
	require.NoError(t, err)
	require.Empty(t, problems)
}

func BenchmarkHooks(b *testing.B) {
	for name, opts := range map[string][]relockprom.Option{"plain": nil, "classes": {relockprom.WithNameClass(firstPart)}} {
		b.Run(name, func(b *testing.B) {
			c, err := relockprom.NewCollector(opts...)
			require.NoError(b, err)
			hooks := c.Hooks()
			e := relock.Event{Name: "orders:42", Kind: relock.KindMutex, Outcome: relock.OutcomeAcquired, Elapsed: time.Millisecond}
			b.ReportAllocs()
			for b.Loop() {
				hooks.Acquired(e)
				hooks.Released(e)
			}
		})
	}
}
