package relock

import (
	"github.com/relock-go/relock/internal/batch"
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

	// batches are what batches of holds need; nil: Redis is told before the next waiter enters.
	batches *batch.Env

	// fair is the protocol again if its waiters stand in a line on Redis; else nil.
	fair *protocol.Fair
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
	strict := fair.Strict()
	reads, writes := protocol.NewReadWrite(plain)
	c.session.registry.NewLine = func(g *gate.Gate[*hold]) *line.Line[*hold] {
		return line.New[*hold](hub, c.session.now, g.Channel, fair.GrantsFor(g.ID.Key))
	}
	c.session.uses = hub.Uses
	inLine := func(g *gate.Gate[*hold]) place { return place{gate: g, queue: &g.Queue, messages: g.InLine()} }
	c.plain = &kind{lock: KindMutex, protocol: fair, batches: c.session.batchEnv(plain.Rename), fair: fair, newTurn: newMutexTurn, stand: inLine}
	c.multi = &kind{lock: KindMulti, protocol: plain, fair: fair, newTurn: newMultiTurn, stand: inLine}
	c.fair = &kind{
		lock:     KindFair,
		protocol: strict,
		fair:     strict,
		newTurn:  func(a *attempt) turn { return newFairTurn(a, a.hold.places[0].ticket) },
		stand: func(g *gate.Gate[*hold]) place {
			return place{gate: g, queue: &g.Line().Queue, messages: g.InLine()}
		},
	}
	c.write = &kind{lock: KindRW, protocol: writes, side: keys.Writing, stand: atGate, newTurn: func(a *attempt) turn { return newWriterTurn(a, writes) }}
	c.read = &kind{lock: KindRW, protocol: reads, side: keys.Reading, stand: atGate, newTurn: func(a *attempt) turn { return newReaderTurn(a, reads) }}
}

// addQuorumKinds makes the kinds of lock of a client on several deployments, which have no line.
func (c *Client) addQuorumKinds(p protocol.Protocol) {
	c.plain = &kind{lock: KindMutex, protocol: p, newTurn: newPlainTurn, stand: atGate}
	c.multi = &kind{lock: KindMulti, protocol: p, newTurn: newPlainTurn, stand: atGate}
}
