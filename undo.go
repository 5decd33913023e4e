package relock

import (
	"maps"
	"sync"
)

// undos are the names that may hold keys on a Redis without anybody here holding them: of
// tries whose answer did not come, of holds that were lost or could not be released. Every
// such name has been retired, so it may be released at any time, and any number of times,
// without touching anybody else. One goroutine of the client does it, while there are any.
type undos struct {
	client *Client
	// settle releases one name, and reports whether nothing is left to do about it.
	settle func(undo) bool

	mu      sync.Mutex
	pending map[undoID]undo
	running bool
}

type undoID struct {
	field string
	keys  targetID
}

type undo struct {
	target *target
	field  string
	until  instant // by then the lease has run out by itself
	unseen bool    // nobody can have waited for it to be released: nobody is to be woken

	settled chan struct{} // closed when nothing is left to do about it
}

func newUndos(c *Client, settle func(undo) bool) *undos {
	return &undos{client: c, settle: settle, pending: make(map[undoID]undo)}
}

// settleByKind releases what u says as locks of its kind are released. A refusal does not
// settle it: what is missing, a permission or a password, may come back in time.
func (c *Client) settleByKind(u undo) bool {
	_, out := u.target.kind.release(c.background, effort{attempts: 1}, u.target, u.field, make([]int, len(u.target.keys)))
	return out.err == nil
}

// undo has the keys of t released for field in the background, wherever it holds them.
// unseen: nobody can have waited for that. The channels are closed when that is settled.
func (c *Client) undo(t *target, field string, until instant, unseen bool) []<-chan struct{} {
	settled := make([]<-chan struct{}, len(c.undos))
	for i, u := range c.undos {
		settled[i] = u.add(undo{target: t, field: field, until: until, unseen: unseen})
	}
	return settled
}

func (u *undos) add(next undo) (settled <-chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	id := undoID{field: next.field, keys: next.target.id}
	if before, pending := u.pending[id]; pending {
		next.unseen = next.unseen && before.unseen
		next.until = latest(next.until, before.until)
		next.settled = before.settled
	} else {
		next.settled = make(chan struct{})
	}
	u.pending[id] = next
	if !u.running {
		u.running = true
		u.client.goroutines.Go(u.run)
	}
	return next.settled
}

// run releases what is pending until nothing is, or the client has been closed.
func (u *undos) run() {
	for failures := 0; ; {
		batch := u.next()
		if len(batch) == 0 {
			return
		}
		unanswered := false
		for id, undo := range batch {
			if u.over(undo) || u.settle(undo) {
				u.remove(id, undo)
			} else {
				unanswered = true
			}
		}
		if !unanswered {
			failures = 0
			continue
		}
		failures++
		pause(u.client.background, backoff(failures))
	}
}

// over reports whether it is too late for undo.
func (u *undos) over(undo undo) bool {
	return u.client.background.Err() != nil || u.client.now().until(undo.until) <= 0
}

// next returns what is pending; if that is nothing, the goroutine has to end.
func (u *undos) next() map[undoID]undo {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.pending) == 0 {
		u.running = false
		return nil
	}
	return maps.Clone(u.pending)
}

// remove forgets an undo, unless a newer one of the same name has come.
func (u *undos) remove(id undoID, done undo) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.pending[id] == done {
		delete(u.pending, id)
		close(done.settled)
	}
}
