package relock

import (
	"maps"
	"sync"
)

// undos are the names that may hold keys on Redis without anybody here holding them: of
// tries whose answer did not come, of holds that were lost or could not be released. Every
// such name has been retired, so it may be released at any time, and any number of times,
// without touching anybody else. One goroutine of the client does it, while there are any.
type undos struct {
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
}

// undo has the keys of t released for field in the background, if it holds them.
func (c *Client) undo(t *target, field string, until instant) {
	u := &c.undos
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.pending == nil {
		u.pending = make(map[undoID]undo)
	}
	u.pending[undoID{field: field, keys: t.id}] = undo{target: t, field: field, until: until}
	if !u.running {
		u.running = true
		c.goroutines.Go(c.runUndos)
	}
}

// runUndos releases what is pending until nothing is, or the client has been closed.
func (c *Client) runUndos() {
	for failures := 0; ; {
		batch := c.undos.next()
		if len(batch) == 0 {
			return
		}
		unanswered := false
		for id, undo := range batch {
			if c.settled(undo) {
				c.undos.remove(id, undo)
			} else {
				unanswered = true
			}
		}
		if !unanswered {
			failures = 0
			continue
		}
		failures++
		pause(c.background, backoff(failures))
	}
}

// settled releases one name, and reports whether nothing is left to do about it. A refusal
// does not settle it: what is missing, a permission or a password, may come back in time.
func (c *Client) settled(u undo) bool {
	if c.background.Err() != nil || c.now().until(u.until) <= 0 {
		return true
	}
	_, out := u.target.kind.release(c.background, effort{attempts: 1}, u.target, u.field, make([]int, len(u.target.keys)))
	return out.err == nil
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
	}
}
