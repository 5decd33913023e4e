package stage

import (
	"fmt"
	"sync"
	"time"

	"github.com/relock-go/relock/chaos/history"
)

// journal is what processes and director have told in a round, as it comes in.
type journal struct {
	began int64 // times are told from here

	mu      sync.Mutex // guards the rest
	events  []history.Event
	holders map[string]int // the process that has told last that it holds a lock, by lock
}

// newJournal returns the journal of a round that begins now.
func newJournal() *journal {
	j := &journal{began: history.Now(), holders: map[string]int{}}
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
		j.holders[e.Lock] = e.Process
	case history.UnlockCall, history.Lost:
		delete(j.holders, e.Lock)
	}
}

// tell records an event of the director, which happens now.
func (j *journal) tell(e history.Event) {
	e.At = history.Now()
	j.record(e)
}

// holds reports whether the process with the number holds a lock, as far as it has told.
func (j *journal) holds(process int) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, holder := range j.holders {
		if holder == process {
			return true
		}
	}
	return false
}

// held reports whether any process holds a lock, as far as they have told.
func (j *journal) held() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.holders) > 0
}

// sinceBeginning says a time as the time since the beginning of a round.
func sinceBeginning(began, at int64) string {
	return fmt.Sprintf("%+9.3fs", time.Duration(at-began).Seconds())
}
