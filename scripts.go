package relock

import (
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/protocol"
)

// kind is a kind of lock: what it does on Redis, and how its waiters get to ask for it. It
// is a property of what a handle locks. Re-entry, waiting, renewal, loss and hooks are the
// same for every kind and know no more of it than this.
type kind struct {
	protocol protocol.Protocol
	side     keys.Side

	// newTurn is how an attempt gets to ask.
	newTurn func(a *attempt) turn
	// stand is the place where the waiters for the key of g stand, without a ticket yet.
	stand func(g *gate) place
}

// atGate is the place in the queue of the gate itself.
func atGate(g *gate) place { return place{gate: g, queue: &g.queue, messages: g} }

// addKinds makes the kinds of lock of a client on one deployment.
func (c *Client) addKinds(hub messageHub, sharded bool) {
	plain := protocol.NewBatchingPlain(c.execs[0], sharded)
	fair := protocol.NewFair(plain, c.ID())
	reads, writes := protocol.NewReadWrite(plain)
	c.plain = &kind{protocol: plain, newTurn: newPlainTurn, stand: atGate}
	c.fair = &kind{
		protocol: fair,
		newTurn:  func(a *attempt) turn { return newFairTurn(a, fair) },
		stand: func(g *gate) place {
			p := g.fairly(func() *party { return newParty(hub, g.channel, fair.GrantsFor(g.key)) })
			return place{gate: g, queue: &p.queue, messages: p}
		},
	}
	c.write = &kind{protocol: writes, side: keys.Writing, stand: atGate, newTurn: func(a *attempt) turn { return newWriterTurn(a, writes) }}
	c.read = &kind{protocol: reads, side: keys.Reading, stand: atGate, newTurn: func(a *attempt) turn { return newReaderTurn(a, reads) }}
}
