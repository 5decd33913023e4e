package relock

import (
	"github.com/relock-go/relock/internal/queue"
)

// place is where a hold stands for one of its keys: in a queue of this process, of which the gate of the key has two.
type place struct {
	gate   *gate
	queue  *queue.Queue[*hold]
	ticket *queue.Ticket[*hold]

	// inLine says that it is woken by what is told to those in the line of the key on Redis: grants, too. The gate
	// itself hears of releases only.
	inLine bool
}

// listen has waiters woken by messages, until unlisten.
func (p *place) listen() {
	if p.inLine {
		p.gate.line().Listen()
	} else {
		p.gate.listen()
	}
}

// unlisten takes a listener away.
func (p *place) unlisten() {
	if p.inLine {
		p.gate.line().Unlisten()
	} else {
		p.gate.unlisten()
	}
}

// listening reports whether messages arrive.
func (p *place) listening() bool {
	if p.inLine {
		return p.gate.line().Listening()
	}
	return p.gate.listening()
}
