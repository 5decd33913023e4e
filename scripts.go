package relock

import (
	"github.com/relock-go/relock/internal/acquire"
	"github.com/relock-go/relock/internal/batch"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/line"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/session"
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

	// inLine says that others stand in a line on Redis.
	inLine bool
	// newTurn is how an attempt gets to ask.
	newTurn acquire.NewTurn
	// stand is the place where the waiters for the key of g stand, without a ticket yet.
	stand func(g *acquire.Gate) acquire.Place
}

// addKinds makes the kinds of lock of a client on one deployment.
func (c *Client) addKinds(hub session.MessageHub, sharded bool) {
	plain := protocol.NewBatchingPlain(c.session.Execs[0], sharded)
	lined := protocol.NewLined(plain, c.ID())
	strict := lined.Strict()
	reads, writes := protocol.NewReadWrite(plain)
	c.session.Registry.NewLine = func(g *acquire.Gate) *acquire.Line {
		return line.New[acquire.Hold](hub, c.session.Now, g.Channel, lined.GrantsFor(g.ID.Key))
	}
	c.session.Attempts.Uses = hub.Uses
	c.plain = &kind{
		lock: KindMutex, protocol: lined, batches: c.session.BatchEnv(plain.Rename), inLine: true, stand: acquire.AtGateInLine,
		newTurn: func(a *acquire.Attempt) acquire.Turn { return acquire.NewMutexTurn(a, lined) },
	}
	c.multi = &kind{
		lock: KindMulti, protocol: plain, inLine: true, stand: acquire.AtGateInLine,
		newTurn: func(a *acquire.Attempt) acquire.Turn { return acquire.NewMultiTurn(a, lined) },
	}
	c.fair = &kind{
		lock: KindFair, protocol: strict, inLine: true, stand: acquire.InLine,
		newTurn: func(a *acquire.Attempt) acquire.Turn { return acquire.NewFairTurn(a, strict) },
	}
	c.write = &kind{
		lock: KindRW, protocol: writes, side: keys.Writing, stand: acquire.AtGate,
		newTurn: func(a *acquire.Attempt) acquire.Turn { return acquire.NewWriterTurn(a, writes, otherSideOf(a)) },
	}
	c.read = &kind{
		lock: KindRW, protocol: reads, side: keys.Reading, stand: acquire.AtGate,
		newTurn: func(a *acquire.Attempt) acquire.Turn { return acquire.NewReaderTurn(a, reads, otherSideOf(a)) },
	}
}

// otherSideOf is the other side of the read-write lock that a is to get.
func otherSideOf(a *acquire.Attempt) acquire.OtherSide { return asHold(a.Hold()).other }

// addQuorumKinds makes the kinds of lock of a client on several deployments, which have no line.
func (c *Client) addQuorumKinds(p protocol.Protocol) {
	c.plain = &kind{lock: KindMutex, protocol: p, newTurn: acquire.NewPlainTurn, stand: acquire.AtGate}
	c.multi = &kind{lock: KindMulti, protocol: p, newTurn: acquire.NewPlainTurn, stand: acquire.AtGate}
}
