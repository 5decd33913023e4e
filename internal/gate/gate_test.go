package gate

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/line"
	"github.com/relock-go/relock/internal/wake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hold is one that a gate knows.
type hold struct{ owner keys.Owner }

func (h *hold) Owner() keys.Owner { return h.owner }

func holdOf(owner string) *hold { return &hold{keys.Owner{Fixed: owner}} }

// hub counts subscriptions, none of which is ever live: its own hub is closed.
type hub struct {
	*wake.Hub
	channels []string
	wakes    []func()
}

func newHub() *hub {
	h := &hub{Hub: wake.NewHub(nil, wake.Config{CloseTimeout: time.Second})}
	h.Close()
	return h
}

func (h *hub) Subscribe(channel string, wake func()) *wake.Subscription {
	h.channels, h.wakes = append(h.channels, channel), append(h.wakes, wake)
	return h.Hub.Subscribe(channel, wake)
}

func idOf(key string) ID { return ID{Key: key} }

func TestAGateExistsWhileAHoldUsesIt(t *testing.T) {
	r := NewRegistry[*hold](newHub())
	require.Nil(t, r.Gate(idOf("a")))
	first := r.Enter(idOf("a"), "channel")
	require.Equal(t, idOf("a"), first.ID)
	require.Equal(t, "channel", first.Channel)
	require.Same(t, first, r.Enter(idOf("a"), "channel"), "all that use a key meet at its gate")
	r.Exit(first)
	require.Same(t, first, r.Gate(idOf("a")), "one uses it still")
	require.Equal(t, 1, r.Len())
	r.Exit(first)
	require.Nil(t, r.Gate(idOf("a")))
	require.Zero(t, r.Len())
	require.NotSame(t, first, r.Enter(idOf("a"), "channel"))
}

func TestKeysAndTheirSidesHaveGatesOfTheirOwn(t *testing.T) {
	r := NewRegistry[*hold](newHub())
	gates := make(map[*Gate[*hold]]bool)
	for i := range 200 { // more than there are shards
		for _, side := range []keys.Side{keys.Alone, keys.Writing, keys.Reading} {
			gates[r.Enter(ID{Key: fmt.Sprint(i), Side: side}, "")] = true
		}
	}
	require.Len(t, gates, 600)
	require.Equal(t, 600, r.Len())
	for g := range gates {
		require.Same(t, g, r.Gate(g.ID))
		r.Exit(g)
	}
	require.Zero(t, r.Len())
}

func TestAGateHasOneHoldOfEachOwner(t *testing.T) {
	r := NewRegistry[*hold](newHub())
	g := r.Enter(idOf("a"), "")
	holds := []*hold{holdOf("1"), holdOf("2"), holdOf("3")}
	for _, h := range holds {
		require.Nil(t, g.Find(h.owner))
		require.True(t, g.Add(h))
	}
	for _, h := range holds {
		require.False(t, g.Add(holdOf(h.owner.Fixed)), "its owner has one")
		require.Same(t, h, g.Find(h.owner))
		require.Same(t, h, r.Find(idOf("a"), h.owner))
	}
	require.Nil(t, r.Find(idOf("b"), holds[0].owner))
	for i, h := range []*hold{holds[1], holds[0], holds[2]} {
		g.Remove(holdOf(h.owner.Fixed))
		require.Same(t, h, g.Find(h.owner), "another hold of the same owner was removed")
		g.Remove(h)
		require.Nil(t, g.Find(h.owner))
		require.Len(t, r.All(), 2-i)
	}
	require.True(t, g.Add(holds[1]), "its owner may come back")
	require.True(t, g.Add(holds[0]))
	require.ElementsMatch(t, holds[:2], r.All())
}

func TestAHoldOfSeveralKeysIsListedOnce(t *testing.T) {
	r := NewRegistry[*hold](newHub())
	of := holdOf("several")
	want := []*hold{of}
	for i := range 20 {
		g := r.Enter(idOf(fmt.Sprint(i)), "")
		require.True(t, g.Add(of))
		alone := holdOf(fmt.Sprint("alone", i))
		require.True(t, g.Add(alone))
		want = append(want, alone)
	}
	require.ElementsMatch(t, want, r.All())
}

func TestManyThatComeAndGoMeetAtOneGate(t *testing.T) {
	r := NewRegistry[*hold](newHub())
	var all sync.WaitGroup
	for i := range 8 {
		h := holdOf(fmt.Sprint(i))
		all.Go(func() {
			for range 500 {
				g := r.Enter(idOf("a"), "")
				if !g.Add(h) || r.Find(idOf("a"), h.owner) != h {
					t.Error("another gate, or another hold")
				}
				g.Remove(h)
				r.Exit(g)
			}
		})
	}
	all.Wait()
	require.Zero(t, r.Len())
}

func TestAGateSubscribesForTheFirstListenerUntilTheLast(t *testing.T) {
	hub := newHub()
	r := NewRegistry[*hold](hub)
	g := r.Enter(idOf("a"), "channel of a")
	require.False(t, g.Listening())
	for n := 1; n <= 2; n++ {
		g.Listen()
		g.Listen()
		require.Len(t, hub.channels, n, "one for all")
		require.Equal(t, "channel of a", hub.channels[n-1])
		before := g.Queue.Wakes()
		hub.wakes[n-1]()
		require.Equal(t, before+1, g.Queue.Wakes(), "it wakes the queue")
		g.Unlisten()
		require.NotNil(t, g.subscription, "one listens still")
		require.False(t, g.Listening(), "nothing arrives")
		g.Unlisten()
		require.Nil(t, g.subscription)
	}
}

func TestAGateHasOneLineMadeForTheFirstThatNeedsIt(t *testing.T) {
	made := 0
	r := NewRegistry[*hold](newHub())
	r.NewLine = func(g *Gate[*hold]) *line.Line[*hold] {
		made++
		return line.New[*hold](nil, clock.System, g.ID.Key, "")
	}
	g := r.Enter(idOf("a"), "")
	require.Zero(t, made)
	first := g.Line()
	require.Same(t, first, g.Line())
	require.Equal(t, 1, made)
	require.NotSame(t, first, r.Enter(idOf("b"), "").Line())
}

// A gate in the line listens for what is told to those there.
func TestThoseInLineListenByTheLine(t *testing.T) {
	hub := newHub()
	r := NewRegistry[*hold](hub)
	r.NewLine = func(*Gate[*hold]) *line.Line[*hold] {
		return line.New[*hold](lineHub{hub}, clock.System, "releases", "grants")
	}
	g := r.Enter(idOf("a"), "channel of a")
	inLine := g.InLine()
	inLine.Listen()
	require.Equal(t, []string{"releases", "grants"}, hub.channels)
	require.False(t, inLine.Listening())
	inLine.Unlisten()
	inLine.Listen()
	require.Len(t, hub.channels, 4)
}

// lineHub is a hub that a line subscribes at.
type lineHub struct{ *hub }

func (h lineHub) SubscribeTo(channel string, wake func(), _ func(string)) *wake.Subscription {
	return h.Subscribe(channel, wake)
}

func (h lineHub) Rejoin(channel string, wake func(), _ func(string)) *wake.Subscription {
	return h.Subscribe(channel, wake)
}
