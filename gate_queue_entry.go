package relock

import (
	"github.com/relock-go/relock/internal/queue"
)

// queueEntry is the queue entry of a hold for one of its keys: in one of the two local queues of the gate of that key.
type queueEntry struct {
	gate   *gate
	queue  *queue.Queue[*hold]
	ticket *queue.Ticket[*hold]

	// inLine: messages for the line of the key wake it, which include grants. The gate itself is only notified of
	// releases.
	inLine bool
}

// listen makes messages wake the waiter, until unlisten.
func (p *queueEntry) listen() {
	if p.inLine {
		p.gate.line().Listen()
	} else {
		p.gate.listen()
	}
}

// unlisten removes a listener.
func (p *queueEntry) unlisten() {
	if p.inLine {
		p.gate.line().Unlisten()
	} else {
		p.gate.unlisten()
	}
}

// listening reports whether messages arrive.
func (p *queueEntry) listening() bool {
	if p.inLine {
		return p.gate.line().Listening()
	}
	return p.gate.listening()
}
