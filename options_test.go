package relock

import (
	"context"
	"errors"
	"math"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// offline returns a Redis client that fails the test when it is used.
func offline(t *testing.T) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Dialer: noDial(t)})
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

func noDial(t *testing.T) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) {
		t.Error("something was sent to Redis")
		return nil, errors.New("not in this test")
	}
}

// clientOn returns a client that is closed at the end of the test.
func clientOn(t *testing.T, rdb redis.UniversalClient, opts ...ClientOption) *Client {
	t.Helper()
	c, err := New(rdb, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

const century = 100 * 365 * 24 * time.Hour

// badOptions are options out of their range, each with what its error says.
var badOptions = map[string]struct {
	opts []Option
	text string
}{
	"zero TTL":                       {[]Option{WithTTL(0)}, "WithTTL(0s): must be at least 100ms"},
	"negative TTL":                   {[]Option{WithTTL(-time.Second)}, "WithTTL(-1s)"},
	"least TTL":                      {[]Option{WithTTL(math.MinInt64)}, "WithTTL(-2562047h47m16.854775808s)"},
	"short TTL":                      {[]Option{WithTTL(protocol.MinTTL - 1)}, "WithTTL(99.999999ms)"},
	"endless TTL":                    {[]Option{WithTTL(math.MaxInt64)}, "WithTTL(2562047h47m16.854775807s)"},
	"long TTL":                       {[]Option{WithTTL(century + 1)}, "WithTTL(876000h0m0.000000001s)"},
	"zero renew interval":            {[]Option{WithRenewInterval(0)}, "WithRenewInterval(0s): must be at least 10ms"},
	"negative renew interval":        {[]Option{WithRenewInterval(-1)}, "WithRenewInterval(-1ns)"},
	"short renew interval":           {[]Option{WithRenewInterval(lease.MinRenewInterval - 1)}, "WithRenewInterval(9.999999ms)"},
	"renew interval of the TTL":      {[]Option{WithTTL(time.Second), WithRenewInterval(time.Second)}, "WithRenewInterval(1s) is too long for a TTL of 1s"},
	"renew interval of a longer TTL": {[]Option{WithRenewInterval(time.Minute)}, "WithRenewInterval(1m0s) is too long for a TTL of 30s"},
	"renew interval a bit too long":  {[]Option{WithTTL(3 * time.Second), WithRenewInterval(2*time.Second + 1)}, "WithRenewInterval(2.000000001s)"},
	"the order does not matter":      {[]Option{WithRenewInterval(10 * time.Second), WithTTL(5 * time.Second)}, "WithRenewInterval(10s) is too long for a TTL of 5s"},
	"zero max hold":                  {[]Option{WithMaxHold(0)}, "WithMaxHold(0s): must be positive"},
	"negative max hold":              {[]Option{WithMaxHold(-time.Hour)}, "WithMaxHold(-1h0m0s)"},
	"max hold under the TTL":         {[]Option{WithMaxHold(30*time.Second - 1)}, "WithMaxHold(29.999999999s) is shorter than the TTL of 30s"},
	"zero wait timeout":              {[]Option{WithWaitTimeout(0)}, "WithWaitTimeout(0s): must be positive"},
	"negative wait timeout":          {[]Option{WithWaitTimeout(-1)}, "WithWaitTimeout(-1ns)"},
	"zero unlock timeout":            {[]Option{WithUnlockTimeout(0)}, "WithUnlockTimeout(0s): must be positive"},
	"negative unlock timeout":        {[]Option{WithUnlockTimeout(-1)}, "WithUnlockTimeout(-1ns)"},
	"unlock timeout over the TTL":    {[]Option{WithUnlockTimeout(30*time.Second + 1)}, "WithUnlockTimeout(30.000000001s) is longer than the TTL of 30s"},
	"negative handoffs":              {[]Option{WithLocalHandoffs(-1)}, "WithLocalHandoffs(-1): must not be negative"},
	"zero safety poll":               {[]Option{WithSafetyPoll(0)}, "WithSafetyPoll(0s): must be at least 10ms"},
	"negative safety poll":           {[]Option{WithSafetyPoll(-1)}, "WithSafetyPoll(-1ns)"},
	"short safety poll":              {[]Option{WithSafetyPoll(minSafetyPoll - 1)}, "WithSafetyPoll(9.999999ms)"},
	"an interval of no renewal":      {[]Option{WithRenewInterval(time.Second), WithoutRenewal()}, "WithoutRenewal and WithRenewInterval contradict each other: use one of them"},
	"no renewal at an interval":      {[]Option{WithoutRenewal(), WithRenewInterval(time.Second)}, "WithoutRenewal and WithRenewInterval contradict each other: use one of them"},
	"zero min hold":                  {[]Option{WithMinHold(0)}, "WithMinHold(0s): must be positive"},
	"negative min hold":              {[]Option{WithMinHold(-time.Hour)}, "WithMinHold(-1h0m0s)"},
	"absurd min hold":                {[]Option{WithMinHold(math.MaxInt64)}, "WithMinHold(2562047h47m16.854775807s): must be positive, and at most 876000h0m0s"},
	"a bound of no renewal":          {[]Option{WithMaxHold(time.Hour), WithoutRenewal()}, "WithMaxHold and WithoutRenewal contradict each other"},
	"no renewal with a bound":        {[]Option{WithoutRenewal(), WithMaxHold(time.Hour)}, "WithMaxHold and WithoutRenewal contradict each other"},
	"the first of several":           {[]Option{WithSafetyPoll(1), WithTTL(1)}, "WithSafetyPoll(1ns)"},
	"good ones after it":             {[]Option{WithTTL(1), WithTTL(time.Minute)}, "WithTTL(1ns)"},
	"nil":                            {[]Option{WithTTL(time.Minute), nil}, "nil"},
}

func clientOptions(opts []Option) []ClientOption {
	list := make([]ClientOption, len(opts))
	for i, opt := range opts {
		if opt != nil {
			list[i] = opt
		}
	}
	return list
}

func mutexOptions(opts []Option) []MutexOption {
	list := make([]MutexOption, len(opts))
	for i, opt := range opts {
		if opt != nil {
			list[i] = opt
		}
	}
	return list
}

func TestOptions_BadOneOfAClientIsReturnedByNew(t *testing.T) {
	for name, c := range badOptions {
		t.Run(name, func(t *testing.T) {
			locks, err := New(offline(t), clientOptions(c.opts)...)
			require.Nil(t, locks)
			require.ErrorIs(t, err, ErrInvalidOption)
			require.ErrorContains(t, err, c.text)
		})
	}
}

func TestOptions_BadOneOfAHandleIsReturnedByEveryCall(t *testing.T) {
	locks := clientOn(t, offline(t))
	for name, c := range badOptions {
		t.Run(name, func(t *testing.T) {
			unusable(t, locks.Mutex("orders", mutexOptions(c.opts)...), ErrInvalidOption, c.text)
			unusable(t, locks.MultiMutex([]string{"b", "a"}, mutexOptions(c.opts)...), ErrInvalidOption, c.text)
		})
	}
}

func TestOptions_BadOwnersAreRefused(t *testing.T) {
	locks := clientOn(t, offline(t))
	for id, text := range map[string]string{
		"":          `WithOwner(""): the id must not be empty`,
		"7":         `WithOwner("7"): the id must not be all digits`,
		"123456789": `WithOwner("123456789"): the id must not be all digits`,
		"000":       `WithOwner("000"): the id must not be all digits`,
		":":         `WithOwner(":"): the id must not contain ':'`,
		"job:17":    `WithOwner("job:17"): the id must not contain ':'`,
		"7:write":   `WithOwner("7:write"): the id must not contain ':'`,
		"a\n:":      `WithOwner("a\n:"): the id must not contain ':'`,
		"write":     `WithOwner("write"): this id is reserved`,
	} {
		unusable(t, locks.Mutex("orders", WithOwner(id)), ErrInvalidOption, text)
	}
	for _, id := range []string{"job-17", "a", "-7", "7a", " ", "7 ", "٧", "é", "\x00", "{}", "Write", "read"} {
		m := locks.Mutex("orders", WithOwner(id))
		require.NoError(t, m.err, "%q", id)
		require.Equal(t, keys.Owner{Fixed: id}, m.owner())
	}
}

func TestOptions_BoundsAreAccepted(t *testing.T) {
	for name, opts := range map[string][]Option{
		"shortest TTL":             {WithTTL(protocol.MinTTL)},
		"longest TTL":              {WithTTL(century)},
		"shortest renew interval":  {WithRenewInterval(lease.MinRenewInterval)},
		"longest renew interval":   {WithTTL(3 * time.Second), WithRenewInterval(2 * time.Second)},
		"shortest max hold":        {WithMaxHold(defaultSettings().TTL)},
		"longest min hold":         {WithMinHold(maxTTL)},
		"min hold without renewal": {WithMinHold(time.Hour), WithoutRenewal()},
		"endless max hold":         {WithMaxHold(math.MaxInt64)},
		"shortest wait":            {WithWaitTimeout(1)},
		"endless wait":             {WithWaitTimeout(math.MaxInt64)},
		"shortest unlock timeout":  {WithUnlockTimeout(1)},
		"longest unlock timeout":   {WithUnlockTimeout(defaultSettings().TTL)},
		"no handoffs":              {WithLocalHandoffs(0)},
		"many handoffs":            {WithLocalHandoffs(math.MaxInt)},
		"shortest safety poll":     {WithSafetyPoll(minSafetyPoll)},
		"endless safety poll":      {WithSafetyPoll(math.MaxInt64)},
		"no hooks":                 {WithHooks(Hooks{})},
		"everything that goes off": {WithoutReentrancy(), WithoutRenewal(), WithFencing(), WithSharedFencing()},
	} {
		t.Run(name, func(t *testing.T) {
			locks := clientOn(t, offline(t), clientOptions(opts)...)
			require.NoError(t, locks.Mutex("orders").err)
			require.NoError(t, clientOn(t, offline(t)).Mutex("orders", mutexOptions(opts)...).err)
		})
	}
}

func TestOptions_TTLIsRoundedUpToMilliseconds(t *testing.T) {
	locks := clientOn(t, offline(t))
	for d, want := range map[time.Duration]time.Duration{
		protocol.MinTTL:                    protocol.MinTTL,
		protocol.MinTTL + 1:                101 * time.Millisecond,
		101*time.Millisecond - 1:           101 * time.Millisecond,
		time.Second:                        time.Second,
		time.Second + time.Microsecond:     1001 * time.Millisecond,
		time.Hour + 999*time.Microsecond:   time.Hour + time.Millisecond,
		century - 500*time.Microsecond:     century,
		1500*time.Millisecond + 500*1000*1: 1501 * time.Millisecond,
	} {
		require.Equal(t, want, locks.Mutex("orders", WithTTL(d)).settings.TTL, "of %v", d)
	}
}

func TestOptions_DefaultsAreTheDocumentedOnes(t *testing.T) {
	s := clientOn(t, offline(t)).Mutex("orders").settings
	require.Equal(t, settings{
		Terms:         protocol.Terms{TTL: 30 * time.Second, Renewed: true, SafetyPoll: 5 * time.Second},
		renewInterval: 10 * time.Second,
		unlockTimeout: 5 * time.Second,
		reentrant:     true,
		localHandoffs: 16,
		deadlockCheck: 5 * time.Second,
	}, s)
}

func TestOptions_DefaultsFollowTheTTL(t *testing.T) {
	locks := clientOn(t, offline(t), WithTTL(3*time.Second))
	s := locks.Mutex("orders").settings
	require.Equal(t, time.Second, s.renewInterval)
	require.Equal(t, 3*time.Second, s.unlockTimeout)
	s = locks.Mutex("orders", WithTTL(time.Minute)).settings
	require.Equal(t, 20*time.Second, s.renewInterval, "of the handle's TTL, not the client's")
	require.Equal(t, 5*time.Second, s.unlockTimeout)
}

func TestOptions_OfAHandleReplaceTheClients(t *testing.T) {
	called := ""
	hooks := func(name string) Hooks { return Hooks{Lost: func(Event) { called = name }} }
	locks := clientOn(t, offline(t), WithTTL(10*time.Second), WithRenewInterval(time.Second), WithMaxHold(time.Minute), WithMinHold(time.Second),
		WithWaitTimeout(time.Second), WithUnlockTimeout(2*time.Second), WithFencing(), WithoutReentrancy(),
		WithLocalHandoffs(3), WithSafetyPoll(time.Second), WithDeadlockCheck(time.Minute), WithHooks(hooks("client")))

	s := locks.Mutex("orders").settings
	s.hooks.Lost(Event{})
	require.Equal(t, "client", called)
	s.hooks = Hooks{}
	client := settings{
		Terms: protocol.Terms{
			TTL: 10 * time.Second, Renewed: true, Fencing: true, CounterLife: 24 * time.Hour, SafetyPoll: time.Second,
		},
		renewInterval: time.Second, maxHold: time.Minute, minHold: time.Second,
		waitTimeout: time.Second, unlockTimeout: 2 * time.Second,
		localHandoffs: 3, deadlockCheck: time.Minute,
	}
	require.Equal(t, client, s)

	s = locks.Mutex("orders", WithTTL(20*time.Second), WithRenewInterval(2*time.Second), WithMaxHold(time.Hour), WithMinHold(time.Millisecond-1), WithWaitTimeout(time.Minute),
		WithUnlockTimeout(time.Second), WithSharedFencing(), WithLocalHandoffs(0), WithSafetyPoll(time.Minute), WithDeadlockCheck(time.Second),
		WithHooks(hooks("handle")), WithOwner("me")).settings
	s.hooks.Lost(Event{})
	require.Equal(t, "handle", called)
	s.hooks = Hooks{}
	require.Equal(t, settings{
		Terms:         protocol.Terms{TTL: 20 * time.Second, Renewed: true, Fencing: true, SafetyPoll: time.Minute},
		renewInterval: 2 * time.Second, maxHold: time.Hour, minHold: time.Millisecond,
		waitTimeout: time.Minute, unlockTimeout: time.Second, owner: "me",
		deadlockCheck: time.Second,
	}, s)

	s = locks.Mutex("orders").settings
	s.hooks = Hooks{}
	require.Equal(t, client, s, "another handle is not changed by it")
}

func TestOptions_OfAHandleAreCheckedWithTheClients(t *testing.T) {
	locks := clientOn(t, offline(t), WithTTL(time.Minute), WithRenewInterval(30*time.Second), WithUnlockTimeout(50*time.Second), WithMaxHold(2*time.Minute))
	require.NoError(t, locks.Mutex("orders").err)
	unusable(t, locks.Mutex("orders", WithTTL(40*time.Second)), ErrInvalidOption, "WithRenewInterval(30s)")
	unusable(t, locks.Mutex("orders", WithTTL(40*time.Second), WithoutRenewal()), ErrInvalidOption, "WithUnlockTimeout(50s)")
	unusable(t, locks.Mutex("orders", WithTTL(3*time.Minute)), ErrInvalidOption, "WithMaxHold(2m0s)")
	require.NoError(t, locks.Mutex("orders", WithTTL(50*time.Second)).err)

}

func TestOptions_RenewalOfAHandleIsItsOwn(t *testing.T) {
	fixed := clientOn(t, offline(t), WithoutRenewal())
	require.False(t, fixed.Mutex("orders").settings.Renewed)
	s := fixed.Mutex("orders", WithRenewInterval(time.Second), WithMaxHold(time.Hour)).settings
	require.NoError(t, s.err)
	require.True(t, s.Renewed, "an interval turns renewal on")
	require.Equal(t, time.Hour, s.maxHold)
	unusable(t, fixed.Mutex("orders", WithMaxHold(time.Hour)), ErrInvalidOption, "WithMaxHold and WithoutRenewal")
	unusable(t, fixed.Mutex("orders", WithoutRenewal(), WithRenewInterval(time.Second)), ErrInvalidOption, "contradict")

	s = clientOn(t, offline(t), WithRenewInterval(time.Second), WithMaxHold(time.Minute)).Mutex("orders", WithTTL(time.Hour), WithoutRenewal()).settings
	require.NoError(t, s.err, "nothing is left to bound")
	require.False(t, s.Renewed)
	require.Zero(t, s.maxHold)
}

func TestOptions_OfClientAndHandleAreDistinct(t *testing.T) {
	for _, opt := range []ClientOption{WithPrefix("app:"), WithShardedPubSub(), WithoutPipelining()} {
		_, is := opt.(MutexOption)
		require.False(t, is, "%T", opt)
	}
	for _, opt := range []MutexOption{WithOwner("me"), WithOwnerFrom(NewOwner(t.Context()))} {
		_, is := opt.(ClientOption)
		require.False(t, is, "%T", opt)
	}
}

func TestOptions_FirstBadOneIsReportedAfterABadName(t *testing.T) {
	locks := clientOn(t, offline(t))
	unusable(t, locks.Mutex("a{b", WithTTL(0)), ErrInvalidName, `"a{b"`)
	unusable(t, locks.Mutex("orders", WithOwner(""), WithTTL(0)), ErrInvalidOption, "WithOwner")
	unusable(t, locks.Mutex("orders", nil), ErrInvalidOption, "a MutexOption is nil")
}

// BenchmarkOptionResolution is the making of a handle, which sends nothing.
func BenchmarkOptionResolution(b *testing.B) {
	c := LocksOn(b, redistest.Mini(b).Client(b))
	for name, opts := range map[string][]MutexOption{
		"defaults": nil,
		"options":  {WithTTL(time.Minute), WithOwner("job-17"), WithFencing(), WithWaitTimeout(time.Second)},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if m := c.Mutex("orders:42", opts...); m.err != nil {
					b.Fatal(m.err)
				}
			}
		})
	}
}

func TestOptions_ContextWithoutAnOwnerIsRefused(t *testing.T) {
	locks := clientOn(t, offline(t))
	var none context.Context
	require.Nil(t, NewOwner(none))
	unusable(t, locks.Mutex("orders", WithOwnerFrom(t.Context())), ErrInvalidOption, "NewOwner")
	unusable(t, locks.Mutex("orders", WithOwnerFrom(none)), ErrInvalidOption, "the context is nil")
	unusable(t, locks.Mutex("orders", WithOwnerFrom(NewOwner(none))), ErrInvalidOption, "the context is nil")
	require.ErrorIs(t, locks.RWMutex("orders", WithOwnerFrom(t.Context())).RLock(t.Context()), ErrInvalidOption)
}

func TestOptions_WithReplicasReportsInvalidArguments(t *testing.T) {
	rdb := redistest.Mini(t).Client(t)
	for want, opts := range map[string][]ClientOption{
		"at least 1 replica":           {WithReplicas(0, time.Second)},
		"the timeout must be at least": {WithReplicas(1, time.Millisecond)},
		"at most a sixth":              {WithReplicas(1, 6*time.Second)},
		"for a TTL of 600ms":           {WithTTL(600 * time.Millisecond), WithReplicas(1, 101*time.Millisecond)},
		"for a TTL of 601ms":           {WithReplicas(1, 101*time.Millisecond), WithTTL(601 * time.Millisecond)},
		"WithReplicas(1, 1ns)":         {WithReplicas(1, 1)},
	} {
		_, err := New(rdb, opts...)
		require.ErrorIs(t, err, ErrInvalidOption, want)
		require.ErrorContains(t, err, want)
	}
	c := LocksOn(t, rdb, WithTTL(600*time.Millisecond), WithReplicas(3, 99500*time.Microsecond))
	require.Equal(t, redisexec.Replicas{N: 3, Timeout: 100 * time.Millisecond}, c.settings.replicas)
	require.ErrorIs(t, c.Mutex("name", WithTTL(100*time.Millisecond)).Lock(t.Context()), ErrInvalidOption)
}

// Java's watchdog gives the key its own 30 s, whatever others have asked for.
func TestOptions_ReadersAreRenewedBeforeAJavaReaderCanEndTheirLease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		m := LocksOn(t, b.Client(t)).RWMutex("x", WithTTL(5*time.Minute))
		require.Equal(t, readRenewInterval, m.read.settings.renewInterval)
		require.Equal(t, 100*time.Second, m.write.settings.renewInterval)
	})
}

func TestLinger_OfTheClientConcernsTheMutexAlone(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, rdb *redis.Client) {
		c, short := LocksOn(t, rdb, WithLinger(10*time.Second)), WithTTL(10*time.Second)
		_, err := c.Mutex("a", short).TryLock(t.Context())
		require.ErrorContains(t, err, "WithLinger(10s) is too long for a TTL of 10s")
		for name, m := range map[string]*Mutex{"fair": c.FairMutex("b", short), "multi": c.MultiMutex([]string{"c", "d"}, short)} {
			held, err := m.TryLock(t.Context())
			require.NoError(t, err, name)
			require.True(t, held, name)
			require.NoError(t, m.Unlock(), name)
		}
		rw := c.RWMutex("e", short)
		held, err := rw.TryLock(t.Context())
		require.NoError(t, err)
		require.True(t, held)
		require.NoError(t, rw.Unlock())
		p, held, err := c.Semaphore("f", 1, short).TryAcquire(t.Context())
		require.NoError(t, err)
		require.True(t, held)
		require.NoError(t, p.Release())
	})
}
