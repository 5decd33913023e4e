package check

import (
	"cmp"
	"maps"
	"slices"

	"github.com/relock-go/relock/chaos/history"
)

// story is the meaning of the events of a run: the holds, the waits, and the faults of the director.
type story struct {
	began   int64
	holds   []*hold
	calls   []*call // of Lock and TryLock, with any result
	writes  []*write
	left    []history.Event
	misused []history.Event
	world

	// strays are Unlocks of nothing.
	strays []*unlock
}

// hold is the use of a lock by one worker, from the return of its outermost Lock to the Unlock of that. Workers that share an
// owner have a hold each, and these overlap. The library has one hold for all of them.
type hold struct {
	*call         // the outermost Lock
	token   int64 // of that
	levels  []*level
	proofs  []int64 // times at which the library reported the hold as valid
	counted []count
	until   []int64 // deadlines, in the order in which they were reported: at each the hold is lost unless renewed
	watched int64   // since when the worker watched whether others want the lock; 0: never
	wanted  int64   // when the library reported that somebody does; 0: never
	lost    int64   // when the loss was noticed; 0: never
	why     string
	calm    bool // every Lock and Unlock inside succeeded
}

// level is one Lock that succeeded.
type level struct {
	*call
	token  int64
	unlock *unlock // nil: never called
}

// call is a Lock or a TryLock.
type call struct {
	process, worker, op int
	owner, lock         string
	called, returned    int64 // returned is 0 if it never did
	fixed               bool
	try                 bool  // it does not wait
	fair                bool  // served in order
	read                bool  // others may read at the same time
	queued              int64 // when Redis answered that it waits; 0: unknown
	wait                int64
	minHold             int64 // 0: none
	weight, limit       int   // of a request for a permit; 0: it is none
	outcome             history.Outcome
}

// unlock is an Unlock.
type unlock struct {
	process, worker, op int
	owner, lock         string
	read                bool
	called, returned    int64
	outcome             history.Outcome
	err                 string
	count, depth        int // after it
	outermost           bool
}

// count is a reported hold count.
type count struct {
	at          int64
	said, depth int
	token       int64 // of the counter, if it was reported by Redis
	redis       bool  // it was reported by Redis
	nested      bool  // a second level was requested before, or had failed
}

// write is a write to the resource.
type write struct {
	process, worker  int
	lock             string
	hold             *hold // nil: unknown
	token            int64
	called, returned int64
	outcome          history.Outcome
}

// claimed returns the last time at which the hold was certainly valid. A lost hold never becomes valid again, so it was valid
// all the time since its Lock returned.
func (h *hold) claimed() int64 {
	last := h.returned
	for _, at := range h.proofs {
		last = max(last, at)
	}
	return last
}

// kept returns until when the min hold of h, which was unlocked, excludes others: certainly, and at most. 0: it excludes no one,
// as after a loss. Each Lock counts, from its own time.
func (h *hold) kept() (certain, most int64) {
	if u := h.unlocked(); u == nil || u.outcome != history.OK {
		return 0, 0
	}
	for _, l := range h.levels {
		if l.minHold > 0 {
			certain, most = max(certain, l.called+l.minHold), max(most, l.returned+l.minHold)
		}
	}
	return certain, most
}

// keptAtLeast and keptAtMost are the results of kept.
func (h *hold) keptAtLeast() int64 { certain, _ := h.kept(); return certain }
func (h *hold) keptAtMost() int64  { _, most := h.kept(); return most }

// excludes reports whether h and o must not be valid at the same time.
func (h *hold) excludes(o *hold) bool {
	return h.owner != o.owner && !(h.read && o.read) && !h.isPermit()
}

// isPermit reports whether h is a permit of a semaphore.
func (h *hold) isPermit() bool { return h.weight > 0 }

// unlocked returns the Unlock of the outermost level, or nil.
func (h *hold) unlocked() *unlock { return h.levels[0].unlock }

// wasLost reports whether the loss of the hold was reported to any worker.
func (h *hold) wasLost() bool {
	u := h.unlocked()
	return h.lost != 0 || u != nil && u.outcome == history.IsLost
}

// outcomeUnknown reports whether h was unlocked without an answer of Redis.
func (h *hold) outcomeUnknown() bool {
	u := h.unlocked()
	return u != nil && u.outcome == history.Failed
}

// ended returns when the worker had noticed that the hold was over, or had given it up; 0: never.
func (h *hold) ended() int64 {
	u := h.unlocked()
	switch {
	case u == nil:
		return h.lost
	case h.lost == 0:
		return u.called
	default:
		return min(u.called, h.lost)
	}
}

// opID is a call of one process.
type opID struct{ process, op int }

// slot has the levels of one worker.
type slot struct {
	process, worker int
	owner, lock     string
	read            bool // an owner may write and read at the same time
}

// reader makes a story of the events.
type reader struct {
	*story
	calls   map[opID]*call
	unlocks map[opID]*unlock
	holds   map[opID]*hold
	open    map[slot][]*level
	tops    map[slot]*hold
	writing map[opID]*write // by worker: it has one write at a time
}

func readStory(events []history.Event, rules Rules) *story {
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b history.Event) int { return cmp.Compare(a.At, b.At) })
	d := &reader{
		story:   &story{world: survey(events, rules)},
		calls:   make(map[opID]*call),
		unlocks: make(map[opID]*unlock),
		holds:   make(map[opID]*hold),
		open:    make(map[slot][]*level),
		tops:    make(map[slot]*hold),
		writing: make(map[opID]*write),
	}
	if len(events) > 0 {
		d.began = events[0].At
	}
	for _, e := range events {
		d.event(e)
	}
	return d.story
}

func (d *reader) event(e history.Event) {
	id := opID{e.Process, e.Op}
	switch e.Kind {
	case history.LockCall:
		c := &call{process: e.Process, worker: e.Worker, op: e.Op, owner: e.Owner, lock: e.Lock,
			called: e.At, wait: e.Wait, minHold: e.MinHold, try: e.Try, fixed: e.Fixed, fair: e.Fair, read: e.Read, weight: e.Weight, limit: e.Limit}
		d.calls[id] = c
		d.story.calls = append(d.story.calls, c)
	case history.Queued:
		if c := d.calls[id]; c != nil {
			c.queued = e.At
		}
	case history.LockReturn:
		d.lockReturn(id, e)
	case history.UnlockCall:
		d.unlockCall(id, e)
	case history.UnlockReturn:
		d.unlockReturn(id, e)
	case history.Held, history.Counted:
		d.noteHold(id, e)
	case history.Renewed:
		d.renewed(e.Owner, e.Lock, e.Read, e.Until)
	case history.Watched:
		if h := d.holds[id]; h != nil {
			h.watched = e.At
		}
	case history.Wanted:
		if h := d.holds[id]; h != nil {
			h.wanted = e.At
		}
	case history.Lost:
		if h := d.holds[id]; h != nil && h.lost == 0 {
			h.lost, h.why = e.At, e.Err
		}
	case history.WriteCall:
		w := &write{process: e.Process, worker: e.Worker, lock: e.Lock, hold: d.holds[id], token: e.Token, called: e.At}
		d.writing[opID{e.Process, e.Worker}] = w
		d.story.writes = append(d.story.writes, w)
	case history.WriteReturn:
		if w := d.writing[opID{e.Process, e.Worker}]; w != nil {
			w.returned, w.outcome = e.At, e.Outcome
		}
	case history.Left:
		d.left = append(d.left, e)
	case history.Misused:
		d.misused = append(d.misused, e)
	}
}

func (d *reader) lockReturn(id opID, e history.Event) {
	c := d.calls[id]
	if c == nil {
		return
	}
	c.returned, c.outcome = e.At, e.Outcome
	s := slot{c.process, c.worker, c.owner, c.lock, c.read}
	if c.outcome != history.OK {
		if h := d.tops[s]; h != nil {
			h.calm = false
		}
		return
	}
	lv := &level{call: c, token: e.Token}
	if len(d.open[s]) == 0 {
		h := &hold{call: c, token: e.Token, calm: true}
		d.holds[id], d.tops[s] = h, h
		d.story.holds = append(d.story.holds, h)
	}
	h := d.tops[s]
	h.levels = append(h.levels, lv)
	d.open[s] = append(d.open[s], lv)
	d.renewed(c.owner, c.lock, c.read, e.Until)
	if e.Count != 0 {
		h.counted = append(h.counted, count{at: e.At, said: e.Count, depth: e.Depth})
	}
}

// renewed records a deadline for all workers that hold the lock as owner, because they share the lease.
func (d *reader) renewed(owner, lock string, read bool, until int64) {
	if until == 0 {
		return
	}
	for s, h := range d.tops {
		if s.owner == owner && s.lock == lock && s.read == read {
			h.until = append(h.until, until)
		}
	}
}

func (d *reader) unlockCall(id opID, e history.Event) {
	u := &unlock{process: e.Process, worker: e.Worker, op: e.Op, owner: e.Owner, lock: e.Lock, read: e.Read, called: e.At}
	d.unlocks[id] = u
	s := slot{e.Process, e.Worker, e.Owner, e.Lock, e.Read}
	open := d.open[s]
	if len(open) == 0 {
		d.strays = append(d.strays, u)
		return
	}
	last := open[len(open)-1]
	last.unlock = u
	u.outermost = len(open) == 1
	d.open[s] = open[:len(open)-1]
}

func (d *reader) unlockReturn(id opID, e history.Event) {
	u := d.unlocks[id]
	if u == nil {
		return
	}
	u.returned, u.outcome, u.err, u.count, u.depth = e.At, e.Outcome, e.Err, e.Count, e.Depth
	s := slot{u.process, u.worker, u.owner, u.lock, u.read}
	h := d.tops[s]
	if h == nil {
		return
	}
	if u.outcome == history.OK {
		h.proofs = append(h.proofs, u.called) // if the hold had been over, the Unlock would have reported that
	} else {
		h.calm = false
	}
	if u.outermost {
		delete(d.tops, s)
	}
}

// noteHold records an event about a hold.
func (d *reader) noteHold(id opID, e history.Event) {
	h := d.holds[id]
	if h == nil {
		return
	}
	h.proofs = append(h.proofs, e.At)
	if e.Depth == 0 {
		return // if several workers share an owner, the right count is unknown
	}
	nested := !h.calm || len(h.levels) > 1
	h.counted = append(h.counted, count{at: e.At, said: e.Count, depth: e.Depth, token: e.Token,
		redis: e.Kind == history.Counted, nested: nested})
}

// sharedOwners returns the owners that several workers share.
func (s *story) sharedOwners() map[string]bool {
	type worker struct{ process, worker int }
	workers := make(map[string]map[worker]bool)
	for _, c := range s.calls {
		if workers[c.owner] == nil {
			workers[c.owner] = make(map[worker]bool)
		}
		workers[c.owner][worker{c.process, c.worker}] = true
	}
	maps.DeleteFunc(workers, func(_ string, by map[worker]bool) bool { return len(by) < 2 })
	shared := make(map[string]bool)
	for owner := range workers {
		shared[owner] = true
	}
	return shared
}
