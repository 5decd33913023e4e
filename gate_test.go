package relock

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/line"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/wake"
)

// ownedBy is a hold that a gate has recorded.
func ownedBy(owner string) *hold { return &hold{owner: keys.Owner{Fixed: owner}} }

// silentHub counts subscriptions that never become live: its own hub is closed.
type silentHub struct {
	*wake.Hub
	channels []string
	wakes    []func()
}

func newSilentHub() *silentHub {
	h := &silentHub{Hub: wake.NewHub(nil, wake.Config{CloseTimeout: time.Second})}
	h.Close()
	return h
}

func (h *silentHub) Subscribe(channel string, wake func()) *wake.Subscription {
	h.channels, h.wakes = append(h.channels, channel), append(h.wakes, wake)
	return h.Hub.Subscribe(channel, wake)
}

func idOf(key string) gateID { return gateID{key: key} }

func TestGate_ExistsWhileAHoldUsesIt(t *testing.T) {
	r := newRegistry(newSilentHub(), clock.System)
	require.Nil(t, r.gate(idOf("a")))
	one, other := ownedBy("1"), ownedBy("2")
	first := r.enter(idOf("a"), "channel", one)
	require.Equal(t, idOf("a"), first.id)
	require.Equal(t, "channel", first.channel)
	require.Same(t, first, r.enter(idOf("a"), "channel", other), "all that use a key meet at its gate")
	r.exit(first, one)
	require.Same(t, first, r.gate(idOf("a")), "one uses it still")
	require.Equal(t, 1, gates(r))
	first.detach(other)
	require.Same(t, first, r.enter(idOf("a"), "channel", one))
	r.exit(first, one)
	require.Same(t, first, r.gate(idOf("a")), "its release is not answered yet")
	r.exit(first, other)
	require.Nil(t, r.gate(idOf("a")))
	require.Zero(t, gates(r))
	require.NotSame(t, first, r.enter(idOf("a"), "channel", one))
}

func TestGate_IsOfOneKeyAndSide(t *testing.T) {
	r := newRegistry(newSilentHub(), clock.System)
	all, h := make(map[*gate]bool), new(hold)
	for i := range 200 { // more than there are shards
		for _, side := range []keys.Side{0, keys.Writing, keys.Reading} {
			all[r.enter(gateID{fmt.Sprint(i), side}, "", h)] = true
		}
	}
	require.Len(t, all, 600)
	require.Equal(t, 600, gates(r))
	for g := range all {
		require.Same(t, g, r.gate(g.id))
		r.exit(g, h)
	}
	require.Zero(t, gates(r))
}

func TestGate_HasOneHoldPerOwner(t *testing.T) {
	r := newRegistry(newSilentHub(), clock.System)
	g := r.enter(idOf("a"), "", ownedBy("0"))
	holds := []*hold{ownedBy("1"), ownedBy("2"), ownedBy("3")}
	for _, h := range holds {
		require.Nil(t, g.find(h.owner))
		require.Same(t, g, r.enter(idOf("a"), "", h))
	}
	for _, h := range holds {
		require.Nil(t, r.enter(idOf("a"), "", ownedBy(h.owner.Fixed)), "its owner has one")
		require.Same(t, h, g.find(h.owner))
		require.Same(t, h, r.find(idOf("a"), h.owner))
	}
	require.Nil(t, r.find(idOf("b"), holds[0].owner))
	for i, h := range []*hold{holds[1], holds[0], holds[2]} {
		r.exit(g, ownedBy(h.owner.Fixed))
		require.Same(t, h, g.find(h.owner), "another hold of the same owner was removed")
		r.exit(g, h)
		require.Nil(t, g.find(h.owner))
		require.Len(t, r.all(), 3-i)
	}
	require.Same(t, g, r.enter(idOf("a"), "", holds[1]), "its owner may come back")
	require.Contains(t, r.all(), holds[1])
}

func TestGate_ListsTheHoldOfAMultiMutexOnce(t *testing.T) {
	r := newRegistry(newSilentHub(), clock.System)
	of := ownedBy("several")
	want := []*hold{of}
	for i := range 20 {
		r.enter(idOf(fmt.Sprint(i)), "", of)
		alone := ownedBy(fmt.Sprint("alone", i))
		r.enter(idOf(fmt.Sprint(i)), "", alone)
		want = append(want, alone)
	}
	require.ElementsMatch(t, want, r.all())
}

func TestGate_IsOneForManyThatComeAndGo(t *testing.T) {
	r := newRegistry(newSilentHub(), clock.System)
	var all sync.WaitGroup
	for i := range 8 {
		h := ownedBy(fmt.Sprint(i))
		all.Go(func() {
			for range 500 {
				g := r.enter(idOf("a"), "", h)
				if r.find(idOf("a"), h.owner) != h {
					t.Error("another gate, or another hold")
				}
				r.exit(g, h)
			}
		})
	}
	all.Wait()
	require.Zero(t, gates(r))
}

func TestGate_SubscribesFromTheFirstListenerToTheLast(t *testing.T) {
	hub := newSilentHub()
	r := newRegistry(hub, clock.System)
	g := r.enter(idOf("a"), "channel of a", new(hold))
	require.False(t, g.listening())
	for n := 1; n <= 2; n++ {
		g.listen()
		g.listen()
		require.Len(t, hub.channels, n, "one for all")
		require.Equal(t, "channel of a", hub.channels[n-1])
		before := g.queue.Wakes()
		hub.wakes[n-1]()
		require.Equal(t, before+1, g.queue.Wakes(), "it wakes the queue")
		g.unlisten()
		require.NotNil(t, g.subscription, "one listens still")
		require.False(t, g.listening(), "nothing arrives")
		g.unlisten()
		require.Nil(t, g.subscription)
	}
}

func TestGate_MakesOneLineForTheFirstThatNeedsIt(t *testing.T) {
	made := 0
	r := newRegistry(newSilentHub(), clock.System)
	r.newLine = func(g *gate, polls *queue.Bell) *line.Line {
		made++
		return line.New(nil, clock.System, g.id.key, "", polls)
	}
	g := r.enter(idOf("a"), "", new(hold))
	require.Zero(t, made)
	first := g.line()
	require.Same(t, first, g.line())
	require.Equal(t, 1, made)
	require.NotSame(t, first, r.enter(idOf("b"), "", new(hold)).line())
}

// A gate in the line listens for messages to the entries there.
func TestGate_EntriesListenByTheLine(t *testing.T) {
	hub := newSilentHub()
	r := newRegistry(hub, clock.System)
	r.newLine = func(g *gate, polls *queue.Bell) *line.Line {
		return line.New(lineHub{hub}, clock.System, "releases", "grants", polls)
	}
	g := r.enter(idOf("a"), "channel of a", new(hold))
	inLine := &queueEntry{gate: g, inLine: true}
	inLine.listen()
	require.Equal(t, []string{"releases", "grants"}, hub.channels)
	require.False(t, inLine.listening())
	inLine.unlisten()
	inLine.listen()
	require.Len(t, hub.channels, 4)
}

// gates counts the gates in use.
func gates(r *registry) (n int) {
	for i := range r.shards {
		n += len(r.shards[i].gates)
	}
	return n
}

// lineHub is a hub that a line subscribes at.
type lineHub struct{ *silentHub }

func (h lineHub) SubscribeTo(channel string, wake func(), _ func(string)) *wake.Subscription {
	return h.Subscribe(channel, wake)
}

func (h lineHub) Rejoin(channel string, wake func(), _ func(string)) *wake.Subscription {
	return h.Subscribe(channel, wake)
}
