package play

import (
	"slices"
	"sync"
	"time"

	"github.com/relock-go/relock/chaos/history"
)

// journal is the history of a play, in the order in which things happened.
type journal struct {
	began time.Time

	mu     sync.Mutex
	events []history.Event
}

// now is the time of a play, from 1 on: 0 means never.
func (j *journal) now() int64 { return int64(time.Since(j.began)) + 1 }

func (j *journal) add(e history.Event) {
	if e.At == 0 {
		e.At = j.now()
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, e)
}

// length returns the number of events. It may be called from outside the bubble.
func (j *journal) length() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.events)
}

// soFar returns the events up to now.
func (j *journal) soFar() []history.Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.events)
}

// beat is the time between two signs of life. No process writes them, because in virtual time each process runs all the time,
// unless it is paused. They are added to the history afterwards.
const beat = slack / 4

// withSigns returns the history with signs of life of each process, from its first event to its last.
func (j *journal) withSigns() []history.Event {
	type life struct{ from, to int64 }
	lives := make(map[int]*life)
	paused := make(map[int][]life)
	for _, e := range j.events {
		if e.Process == 0 {
			continue
		}
		switch e.Kind {
		case history.Paused:
			paused[e.Process] = append(paused[e.Process], life{e.At, e.At})
			continue
		case history.Resumed:
			if p := paused[e.Process]; len(p) > 0 {
				p[len(p)-1].to = e.At
			}
			continue
		case history.Killed:
			continue
		}
		l := lives[e.Process]
		if l == nil {
			l = &life{e.At, e.At}
			lives[e.Process] = l
		}
		l.from, l.to = min(l.from, e.At), max(l.to, e.At)
	}
	all := j.events[:len(j.events):len(j.events)]
	for process, l := range lives {
		for at := l.from; at <= l.to; at += int64(beat) {
			for _, p := range paused[process] {
				if p.from < at && at < p.to {
					at = p.to
				}
			}
			all = append(all, history.Event{At: at, Process: process, Kind: history.Alive})
		}
	}
	return all
}
