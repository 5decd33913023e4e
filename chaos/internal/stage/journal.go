package stage

import (
	"fmt"
	"sync"
	"time"

	"github.com/relock-go/relock/chaos/history"
)

// journal has the events of processes and director in a round, in the order of their arrival.
type journal struct {
	began int64 // times in texts are relative to it

	mu      sync.Mutex // guards the rest
	events  []history.Event
	holders map[holder]bool // who reported that they hold a lock
}

// holder is a worker that holds a lock.
type holder struct {
	process, worker int
	lock            string
}

// newJournal returns the journal of a round that begins now.
func newJournal() *journal {
	j := &journal{began: history.Now(), holders: map[holder]bool{}}
	j.record(history.Event{At: j.began, Kind: history.Began})
	return j
}

// record keeps an event of a client process or of the director.
func (j *journal) record(e history.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, e)
	switch e.Kind {
	case history.Held:
		j.holders[holder{e.Process, e.Worker, e.Lock}] = true
	case history.UnlockCall, history.Lost:
		delete(j.holders, holder{e.Process, e.Worker, e.Lock})
	}
}

// recordNow records an event of the director, which happens now.
func (j *journal) recordNow(e history.Event) {
	e.At = history.Now()
	j.record(e)
}

// holds reports whether the process with the number holds a lock, according to its events.
func (j *journal) holds(process int) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	for h := range j.holders {
		if h.process == process {
			return true
		}
	}
	return false
}

// held reports whether any process holds a lock, according to the events.
func (j *journal) held() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.holders) > 0
}

// sinceBeginning returns a time as the time since the beginning of a round.
func sinceBeginning(began, at int64) string {
	return fmt.Sprintf("%+9.3fs", time.Duration(at-began).Seconds())
}
