package relock

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/line"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
)

// kind is a kind of lock: its protocol on Redis, and how its waiters get to ask for it. It
// is a property of a handle. Re-entry, waiting, renewal, loss and hooks are the
// same for every kind and depend on no more than this.
type kind struct {
	lock     LockKind // for hooks
	protocol protocol.Protocol
	side     keys.Side

	// lined is the protocol with its line on Redis; nil: it has no line.
	lined protocol.Queued
	// writes or reads is the protocol of a side of a read-write lock.
	writes *protocol.WriteSide
	reads  *protocol.ReadSide

	// rename writes the current owner of a batch; nil: Redis is asked before the next waiter enters.
	rename renamer
}

// renamer writes the name of the current holder to Redis; see [protocol.Plain.Rename].
type renamer func(ctx context.Context, e redisexec.CallOptions, t *keys.Set, from, to string, lease time.Duration) (ours bool, waiters int, out redisexec.Outcome)

// addKinds makes the kinds of lock of a client on one deployment.
func (c *Client) addKinds(hub messageHub, sharded bool) {
	plain := protocol.NewBundlingPlain(c.session.execs[0], sharded)
	lined := protocol.NewLined(plain, c.ID())
	reads, writes := protocol.NewReadWrite(plain)
	c.session.registry.newLine = func(g *gate, polls *queue.Bell) *line.Line {
		return line.New(hub, c.session.now, g.channel, lined.GrantsFor(g.id.key), polls)
	}
	c.session.uses = hub.Uses
	c.session.registry.announcements = hub
	c.plain = &kind{lock: KindMutex, protocol: lined, lined: lined, rename: plain.Rename}
	c.multi = &kind{lock: KindMulti, protocol: plain, lined: lined}
	strict := lined.Strict()
	c.fair = &kind{lock: KindFair, protocol: strict, lined: strict}
	permits := protocol.NewPermits(plain, c.ID())
	c.permits = &kind{lock: KindSemaphore, protocol: permits, lined: permits, side: keys.Permits}
	c.write = &kind{lock: KindRW, protocol: writes, writes: writes, side: keys.Writing}
	c.read = &kind{lock: KindRW, protocol: reads, reads: reads, side: keys.Reading}
}

// addQuorumKinds makes the kinds of lock of a client on several deployments, which have no line.
func (c *Client) addQuorumKinds(p protocol.Protocol) {
	c.plain = &kind{lock: KindMutex, protocol: p}
	c.multi = &kind{lock: KindMulti, protocol: p}
}

// inOrder reports whether each waiter has an entry in the line.
func (k *kind) inOrder() bool { return k.lock == KindFair || k.lock == KindSemaphore }

// shared reports whether its holds do not exclude each other: those of readers, and permits.
func (k *kind) shared() bool { return k.side == keys.Reading || k.side == keys.Permits }

// newTurn returns how a gets to ask.
func (k *kind) newTurn(a *attempt) turn {
	switch {
	case k.writes != nil:
		return newWriterTurn(a)
	case k.reads != nil:
		return newReaderTurn(a)
	case k.lined == nil:
		return newPlainTurn(a)
	case k.inOrder():
		return newFairTurn(a, a.hold.queueEntries[0].ticket)
	case k.lock == KindMulti:
		return newMultiTurn(a)
	default:
		return newMutexTurn(a)
	}
}

// newQueueEntry returns the entry of a waiter for the key of g, without a ticket yet: in the queue of the gate, or
// in the queue of waiters with an entry in the line each.
func (k *kind) newQueueEntry(g *gate) queueEntry {
	if k.inOrder() {
		return queueEntry{gate: g, queue: &g.line().polls, inLine: true}
	}
	return queueEntry{gate: g, queue: &g.queue, inLine: k.lined != nil}
}
