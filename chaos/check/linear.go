package check

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/relock-go/relock/chaos/history"
)

// porcupine: the operations on each name can have happened in some order on a reentrant mutex with fencing, each Lock and
// Unlock at one moment between its call and its return.
//
// These are the operations of the mutex:
//
//   - a Lock or TryLock that succeeded: the acquisition, or a re-entry by its owner;
//   - an Unlock, whatever it returned, unless the hold was lost: it ends the level;
//   - the end of a hold that was lost, closed or killed, with all its levels: between the last time at which it was
//     certainly valid, and the first at which it was certainly over.
//
// Locks that failed or never returned are left out. Redis may have granted them, but until that grant was undone or
// expired, no other owner can have been granted the lock. So a history is in order with them if and only if it is in order
// without them.
//
// A history also stays in order if a whole hold is left out. Holds are left out if they touch a period in which data was
// lost, or if they are read holds, whose order among each other is unknown. So of a read-write lock only the writers are
// judged here. I1 judges them against the readers. Permits have another model: see countable.

// operation is one operation of the mutex.
type operation struct {
	kind  kind
	owner string
	token int64
	rank  int // of the token among all of the name, from 1
}

type kind int

const (
	lockLevel kind = iota
	unlockLevel
	endHold
)

// mutexState is the state of the mutex.
type mutexState struct {
	owner string // "" if it is free
	token int64
	depth int
	rank  int // of the last token it has given out
}

// step is the mutex: it returns whether an operation is possible in a state, and the next state. Tokens rise, so the next
// acquisition is the one with the next token. To require that saves porcupine the search.
func (s mutexState) step(op operation) (bool, mutexState) {
	ours := s.owner == op.owner && s.token == op.token
	switch op.kind {
	case lockLevel:
		if ours {
			s.depth++
			return true, s
		}
		if s.owner != "" || op.rank != s.rank+1 {
			return false, s
		}
		return true, mutexState{owner: op.owner, token: op.token, depth: 1, rank: op.rank}
	case unlockLevel:
		if !ours {
			return false, s
		}
		if s.depth--; s.depth == 0 {
			s.owner = ""
		}
		return true, s
	default:
		s.owner = ""
		return ours, s
	}
}

const (
	// chunk is the least number of operations that are judged at once.
	chunk = 500
	// patience is how long porcupine may take for one chunk: some thousand times the usual time.
	patience = 30 * time.Second
)

// tenure has all operations of one owner with one acquisition of a name.
type tenure struct {
	owner string
	token int64
	rank  int
	holds []*hold
	ops   []porcupine.Operation
}

func (r *run) linearizable() {
	for name, holds := range r.byName() {
		permits := holds[0].isPermit()
		holds = slices.DeleteFunc(holds, func(h *hold) bool { return r.outcomeUnknown(name, h) })
		if permits {
			r.countable(name, holds)
			continue
		}
		r.inOrder(name, r.tenures(holds))
	}
}

// outcomeUnknown reports whether h touches a period in which the name may have had two holders.
func (r *run) outcomeUnknown(name string, h *hold) bool {
	_, end := r.end(h)
	return r.dataLost(name, h.called, end)
}

// tenures sorts the holds of a name by their tokens.
func (r *run) tenures(holds []*hold) []*tenure {
	type id struct {
		owner string
		token int64
	}
	by := make(map[id]*tenure)
	var tenures []*tenure
	for _, h := range holds {
		if h.token == 0 {
			continue // it was over before the token was requested; otherwise I2 reports it
		}
		k := id{h.owner, h.token}
		if by[k] == nil {
			by[k] = &tenure{owner: h.owner, token: h.token}
			tenures = append(tenures, by[k])
		}
		by[k].holds = append(by[k].holds, h)
	}
	slices.SortStableFunc(tenures, func(a, b *tenure) int { return cmp.Compare(a.token, b.token) })
	rank, last := 0, int64(0)
	for _, t := range tenures {
		if t.token != last {
			rank, last = rank+1, t.token
		}
		t.rank = rank
		r.operations(t)
	}
	return tenures
}

// operations returns the operations of a tenure.
func (r *run) operations(t *tenure) {
	add := func(k kind, from, to int64) {
		op := operation{kind: k, owner: t.owner, token: t.token, rank: t.rank}
		t.ops = append(t.ops, porcupine.Operation{Input: op, Call: from, Return: to})
	}
	clean := true
	from, to := int64(0), int64(never)
	for _, h := range t.holds {
		for _, lv := range h.levels {
			add(lockLevel, lv.called, lv.returned)
			if u := lv.unlock; u != nil && u.returned != 0 && (u.outcome == history.OK || u.outcome == history.Failed) {
				add(unlockLevel, u.called, u.returned)
			}
		}
		certain, over := r.end(h)
		from = max(from, certain)
		if !h.clean() {
			clean, to = false, min(to, over)
		}
	}
	if !clean {
		add(endHold, from, max(from, to))
	}
}

// clean reports whether Unlocks have ended h.
func (h *hold) clean() bool {
	for _, lv := range h.levels {
		u := lv.unlock
		if u == nil || u.returned == 0 || u.outcome != history.OK && u.outcome != history.Failed {
			return false
		}
	}
	return h.lost == 0
}

// end returns the last time at which h was certainly valid or requested, and the first at which it was certainly over.
func (r *run) end(h *hold) (certain, over int64) {
	over = never
	if at := r.killed[h.process]; at != 0 {
		over = at
	}
	if h.lost != 0 {
		over = min(over, h.lost)
	}
	for i, lv := range h.levels {
		certain = max(certain, lv.called)
		u := lv.unlock
		if u == nil || u.returned == 0 {
			continue
		}
		if i == 0 || u.outcome == history.IsLost || u.outcome == history.Closed {
			over = min(over, u.returned)
		}
	}
	for _, at := range h.proofs {
		certain = max(certain, at)
	}
	return certain, over
}

// inOrder judges the tenures of a name, a chunk at a time. All of one tenure comes before all of the next. So the next chunk
// needs only one fact from this one: nothing there can have happened before the last call here.
func (r *run) inOrder(name string, tenures []*tenure) {
	floor := int64(0)
	for len(tenures) > 0 {
		n, size := 0, 0
		for n < len(tenures) && (size < chunk || tenures[n].rank == tenures[n-1].rank) {
			size += len(tenures[n].ops)
			n++
		}
		part := tenures[:n]
		tenures = tenures[n:]
		switch verdict := judge(part, floor); verdict {
		case porcupine.Illegal:
			first := sort.Search(n-1, func(i int) bool { return judge(part[:i+1], floor) != porcupine.Ok })
			h := part[first].holds[0]
			r.breach("porcupine", name, "no order explains %s with the token %d, from %s to %s",
				r.of(h), h.token, r.at(h.called), r.at(h.claimed()))
		case porcupine.Unknown:
			r.breach("porcupine", name, "no verdict within %v", patience)
		}
		for _, t := range part {
			for _, op := range t.ops {
				floor = max(floor, op.Call)
			}
		}
	}
}

// judge judges tenures whose operations cannot have happened before floor.
func judge(tenures []*tenure, floor int64) porcupine.CheckResult {
	model := porcupine.Model{
		Init: func() any { return mutexState{rank: tenures[0].rank - 1} },
		Step: func(state, input, _ any) (bool, any) { return state.(mutexState).step(input.(operation)) },
	}
	var ops []porcupine.Operation
	for _, t := range tenures {
		for _, op := range t.ops {
			if op.Return < floor {
				return porcupine.Illegal
			}
			op.Call = max(op.Call, floor)
			ops = append(ops, op)
		}
	}
	return porcupine.CheckOperationsTimeout(model, ops, patience)
}
