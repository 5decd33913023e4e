package line

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/wake"
)

var errRefused = errors.New("refused")

// hub has subscriptions that never become live: the hub that makes them is closed. So whether
// messages arrive is a matter of the tests with a Redis.
type hub struct {
	*wake.Hub
	opened   []string // channels, in order
	messages map[string]func(string)
	wakes    map[string]func()
	used     map[string]bool // which there are still
	missed   []string
}

func newHub() *hub {
	h := &hub{
		Hub:      wake.NewHub(nil, wake.Config{CloseTimeout: time.Second}),
		messages: make(map[string]func(string)), wakes: make(map[string]func()), used: make(map[string]bool),
	}
	h.Close()
	return h
}

func (h *hub) SubscribeTo(name string, wake func(), message func(string)) *wake.Subscription {
	h.opened = append(h.opened, name)
	h.messages[name], h.wakes[name] = message, wake
	return h.Hub.SubscribeTo(name, wake, message)
}

func (h *hub) Rejoin(name string, wake func(), message func(string)) *wake.Subscription {
	if !h.used[name] {
		return nil
	}
	return h.SubscribeTo(name, wake, message)
}

func (h *hub) Missed(name string) { h.missed = append(h.missed, name) }

func TestLine_SubscribesFromTheFirstListenerToTheLast(t *testing.T) {
	b := newTrial(t)
	require.False(t, b.Listening())
	for n := 1; n <= 2; n++ {
		b.Listen()
		b.Listen()
		require.Len(t, b.hub.opened, 2*n)
		require.Equal(t, []string{"releases", "grants"}, b.hub.opened[2*n-2:])
		b.Unlisten()
		require.NotNil(t, b.releases)
		require.NotNil(t, b.grants)
		b.Unlisten()
		require.Nil(t, b.releases)
		require.Nil(t, b.grants)
	}
	require.False(t, b.Listening())
}

func TestLine_MessagesReachTheirAddressees(t *testing.T) {
	b := newTrial(t)
	b.Listen()
	p := b.placed(1)
	require.Equal(t, 1, b.wakes(func() { b.hub.messages["releases"]("0") }))
	b.hub.messages["releases"]("1 42") // a grant has a channel of its own
	b.stands(p, protocol.EntryWaiting, 0)
	b.hub.messages["grants"]("1 42")
	b.stands(p, protocol.EntryGranted, 1)
	for _, channel := range []string{"releases", "grants"} {
		require.Zero(t, b.wakes(b.hub.wakes[channel]), "not confirmed: it polls often anyway")
	}
	b.confirmed = true // as if they had been confirmed
	require.Equal(t, 1, b.wakes(func() {
		b.hub.wakes["releases"]()
		b.hub.wakes["grants"]()
	}), "messages may have been missed")
	b.Missed()
	require.Equal(t, []string{"grants"}, b.hub.missed)
	b.Unlisten()
}

// To attend costs no traffic: what there is not is not opened.
func TestLine_AttendingOpensNothing(t *testing.T) {
	b := newTrial(t)
	b.Attend()
	require.Empty(t, b.hub.opened)
	require.False(t, b.Listening())
	b.hub.used["releases"] = true
	b.Attend()
	require.Equal(t, []string{"releases"}, b.hub.opened)
	require.False(t, b.Listening(), "grants do not arrive")
	b.Listen()
	require.Equal(t, []string{"releases", "grants"}, b.hub.opened, "what there is stays")
	b.Unlisten()
	b.Unlisten()
	require.NotNil(t, b.grants)
	b.Unlisten()
	require.Nil(t, b.grants)
}

// A second poll would find nothing new, count as spurious, and delay the one for a real message.
func TestLine_PollsOnceWhenBothChannelsAreConfirmed(t *testing.T) {
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		rdb := backend.Client(t)
		hub := wake.NewHub(rdb, wake.Config{
			PingInterval: time.Minute, PongTimeout: time.Minute, AnswerTimeout: time.Minute, Linger: time.Minute,
			RefusalRetry: time.Minute, MinBackoff: time.Millisecond, MaxBackoff: time.Second, CloseTimeout: time.Second,
		})
		var polls queue.Queue[string]
		key := redistest.Key(t)
		l := New(hub, clock.System, key+":releases", key+":grants", &polls.Bell)
		l.Listen()
		redistest.Eventually(t, "both confirmed", l.Listening)
		// Events come one after another, so what comes before this confirmation has been handled.
		confirmed := make(chan struct{}, 1)
		defer hub.Subscribe(key+":later", func() { confirmed <- struct{}{} }).Close()
		redistest.Receive(t, confirmed)
		require.EqualValues(t, 1, polls.Wakes())
		hub.Close()
		require.EqualValues(t, 2, polls.Wakes(), "and once when both are lost")
		l.Unlisten()
	})
}
