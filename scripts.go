package relock

import (
	"github.com/relock-go/relock/internal/gate"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/line"
	"github.com/relock-go/relock/internal/protocol"
)

// kind is a kind of lock: what it does on Redis, and how its waiters get to ask for it. It
// is a property of what a handle locks. Re-entry, waiting, renewal, loss and hooks are the
// same for every kind and know no more of it than this.
type kind struct {
	lock     LockKind // as hooks are told
	protocol protocol.Protocol
	side     keys.Side

	// rename tells Redis of holds that have followed one another in this process; nil: Redis is told
	// before the next waiter enters.
	rename renamer

	// newTurn is how an attempt gets to ask.
	newTurn func(a *attempt) turn
	// stand is the place where the waiters for the key of g stand, without a ticket yet.
	stand func(g *gate.Gate[*hold]) place
}

// atGate is the place in the queue of the gate itself.
func atGate(g *gate.Gate[*hold]) place { return place{gate: g, queue: &g.Queue, messages: g} }

// addKinds makes the kinds of lock of a client on one deployment.
func (c *Client) addKinds(hub messageHub, sharded bool) {
	plain := protocol.NewBatchingPlain(c.session.execs[0], sharded)
	fair := protocol.NewFair(plain, c.ID())
	reads, writes := protocol.NewReadWrite(plain)
	lineAt := func(g *gate.Gate[*hold]) *line.Line[*hold] {
		return g.Line(func() *line.Line[*hold] {
			return line.New[*hold](hub, c.session.now, g.Channel, fair.GrantsFor(g.ID.Key))
		})
	}
	c.addPlain(kind{protocol: plain, rename: plain.Rename})
	c.fair = &kind{
		lock:     KindFair,
		protocol: fair,
		newTurn:  func(a *attempt) turn { return newFairTurn(a, fair, lineAt(a.hold.places[0].gate)) },
		stand: func(g *gate.Gate[*hold]) place {
			l := lineAt(g)
			return place{gate: g, queue: &l.Queue, messages: l}
		},
	}
	c.write = &kind{lock: KindRW, protocol: writes, side: keys.Writing, stand: atGate, newTurn: func(a *attempt) turn { return newWriterTurn(a, writes) }}
	c.read = &kind{lock: KindRW, protocol: reads, side: keys.Reading, stand: atGate, newTurn: func(a *attempt) turn { return newReaderTurn(a, reads) }}
}

// addPlain makes the kinds that wait as a plain lock: of one name, and of several.
func (c *Client) addPlain(k kind) {
	k.newTurn, k.stand = newPlainTurn, atGate
	multi := k
	k.lock, multi.lock = KindMutex, KindMulti
	c.plain, c.multi = &k, &multi
}
