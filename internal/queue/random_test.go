package queue_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/queue"
)

// model is a queue that is too simple to be wrong. Owners are numbers.
type model struct {
	state    []queue.State
	line     []int // the waiting ones
	turn     int   // -1: nobody
	due      bool  // the ticket that has the turn has news
	rung     []bool
	wakes    uint64
	handoffs int
}

func (m *model) give(i int) { m.turn, m.state[i], m.due = i, queue.Turn, true }

func (m *model) remove(i int) {
	m.line = slices.DeleteFunc(m.line, func(j int) bool { return i == j })
}

// leave returns who got the turn, -1 if nobody did.
func (m *model) leave(i int) int {
	had := m.state[i] == queue.Turn
	m.state[i] = queue.Gone
	m.remove(i)
	if !had {
		return -1
	}
	m.turn, m.handoffs = -1, 0
	if len(m.line) == 0 {
		return -1
	}
	next := m.line[0]
	m.remove(next)
	m.give(next)
	m.rung[next] = true
	return next
}

// pair is a queue and its model, driven by the same random operations.
type pair struct {
	*model
	q       queue.Queue[string]
	owners  []*waiter
	names   []string
	random  *rand.Rand
	require *require.Assertions
}

var errOutage = errors.New("outage")

// fresh gives owner i a new ticket: each is used once.
func (p *pair) fresh(i int) {
	p.owners[i] = newWaiter(&p.q, p.names[i])
	p.state[i], p.rung[i] = queue.Gone, false
}

// step does one random operation of owner i that its state allows.
func (p *pair) step(i int) {
	w := p.owners[i]
	switch p.state[i] {
	case queue.Gone:
		p.enter(i)
	case queue.Waiting, queue.Reserved, queue.Failed:
		if p.random.IntN(3) > 0 {
			return
		}
		p.require.Equal(p.state[i], w.Quit())
		p.state[i] = queue.Gone
		p.remove(i)
	case queue.Turn:
		p.act(i, w)
	}
}

func (p *pair) enter(i int) {
	p.fresh(i)
	w, free := p.owners[i], p.turn < 0
	try := p.random.IntN(3) == 0
	if try {
		p.require.Equal(free, w.TryJoin())
	} else {
		p.require.Equal(free, w.Join())
	}
	switch {
	case free:
		p.give(i)
	case !try:
		p.state[i], p.line = queue.Waiting, append(p.line, i)
	}
}

// act is what an owner does who has the turn.
func (p *pair) act(i int, w *waiter) {
	switch p.random.IntN(8) {
	case 0:
		w.Leave()
		p.leave(i)
	case 1:
		mark := p.q.Wakes() - min(p.q.Wakes(), uint64(p.random.IntN(2)))
		w.GiveWay(mark, 2)
		if p.leave(i) >= 0 {
			p.due = mark < p.wakes
		}
	case 2:
		heir := p.random.IntN(len(p.owners))
		if p.state[heir] == queue.Gone {
			p.fresh(heir)
			w.Replace(p.owners[heir].Ticket)
			p.state[i] = queue.Gone
			p.give(heir)
			p.rung[heir] = true
		}
	case 3, 4:
		p.handOver(i, w)
	case 5:
		p.require.Equal(queue.Turn, w.Quit(), "Quit keeps a turn")
	default:
		p.require.Equal(p.due, w.News())
		p.due = false
	}
}

func (p *pair) handOver(i int, w *waiter) {
	agreed := p.random.IntN(4) > 0
	t := w.Reserve(func(string) bool { return agreed })
	if len(p.line) == 0 || !agreed {
		p.require.Nil(t)
		return
	}
	to := p.line[0]
	p.require.Same(p.owners[to].Ticket, t)
	p.state[to] = queue.Reserved
	for range p.random.IntN(4) { // others go on meanwhile
		if j := p.random.IntN(len(p.owners)); j != i {
			p.step(j)
		}
	}
	quit := p.state[to] != queue.Reserved
	switch {
	case p.random.IntN(4) == 0:
		t.Refuse()
		if !quit {
			p.state[to] = queue.Waiting
		}
	case quit:
		p.require.False(w.Grant(t))
	default:
		p.require.True(w.Grant(t))
		p.remove(to)
		p.state[i] = queue.Gone
		p.give(to)
		p.rung[to] = true
		p.handoffs++
	}
}

// around is what others do to the queue.
func (p *pair) around() {
	switch p.random.IntN(12) {
	case 0, 1:
		p.q.Wake()
		p.wakes++
		if p.turn >= 0 {
			p.due, p.rung[p.turn] = true, true
		}
	case 2:
		name := p.names[p.random.IntN(len(p.names))]
		p.q.Fail(errOutage, func(n string) bool { return n == name })
		for i, n := range p.names {
			if n == name && p.state[i] == queue.Waiting {
				p.remove(i)
				p.state[i], p.rung[i] = queue.Failed, true
			}
		}
	}
}

// compare checks all that can be seen of the queue.
func (p *pair) compare() {
	turns := 0
	for i, w := range p.owners {
		state, err := w.State()
		p.require.Equal(p.state[i], state, "owner %d", i)
		p.require.Equal(p.rung[i], len(w.alarm.C()) == 1, "alarm of owner %d", i)
		switch state {
		case queue.Turn:
			turns++
		case queue.Failed:
			p.require.Same(errOutage, err)
		}
		if p.random.IntN(4) == 0 {
			p.rung[i] = false
			w.rung()
		}
	}
	p.require.LessOrEqual(turns, 1)
	inRow, waiting := p.q.Handoffs()
	p.require.Equal(p.handoffs, inRow)
	p.require.Equal(len(p.line) > 0, waiting)
	p.require.Equal(p.wakes, p.q.Wakes())
}

func TestQueue_MatchesItsModel(t *testing.T) {
	for range 10 {
		seed := rand.Uint64()
		p := &pair{
			model:   &model{turn: -1},
			names:   []string{"a", "b", "a", "c", "b", "d"},
			random:  rand.New(rand.NewPCG(seed, 0)),
			require: require.New(t),
		}
		n := len(p.names)
		p.owners, p.state, p.rung = make([]*waiter, n), make([]queue.State, n), make([]bool, n)
		for i := range n {
			p.fresh(i)
		}
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("seed %d", seed)
			}
		})
		for range 500 {
			p.step(p.random.IntN(n))
			p.around()
			p.compare()
		}
	}
}

// mutex is what the library does with a queue: who has the turn has the lock.
type mutex struct {
	q      queue.Queue[string]
	inside atomic.Int32
	served atomic.Int32
	two    atomic.Bool
}

// use takes the lock for a moment, or gives up while it waits.
func (m *mutex) use(random *rand.Rand) {
	w := newWaiter(&m.q, "")
	impatient := random.IntN(3) == 0
	for has := w.Join(); !has; {
		if impatient {
			has = w.Quit() == queue.Turn
			if !has {
				return
			}
			break
		}
		<-w.alarm.C()
		has = w.state() == queue.Turn
	}
	if m.inside.Add(1) != 1 {
		m.two.Store(true)
	}
	m.served.Add(1)
	m.inside.Add(-1)
	switch random.IntN(4) {
	case 0:
		m.q.Wake()
		w.GiveWay(m.q.Wakes(), 2)
	case 1:
		w.Leave()
	default:
		next := w.Reserve(anyone)
		if next == nil {
			w.Leave()
			return
		}
		if random.IntN(4) == 0 {
			next.Refuse()
			w.Leave()
			return
		}
		if !w.Grant(next) {
			w.Leave()
		}
	}
}

func TestQueue_LosesNobodyAndAdmitsOne(t *testing.T) {
	var m mutex
	var all sync.WaitGroup
	for range 16 {
		random := rand.New(rand.NewPCG(rand.Uint64(), 0))
		all.Go(func() {
			for range 500 {
				m.use(random)
			}
		})
	}
	all.Wait() // a lost waiter hangs here
	require.False(t, m.two.Load())
	require.NotZero(t, m.served.Load())
	require.True(t, newWaiter(&m.q, "").TryJoin(), "nobody is left behind")
	inRow, waiting := m.q.Handoffs()
	require.Zero(t, inRow)
	require.False(t, waiting)
}
