package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/relock-go/relock/cmd/relock/internal/look"
)

// event is one change of a lock.
type event struct {
	Time    time.Time    `json:"time"`
	Event   string       `json:"event"`
	Name    string       `json:"name"`
	Owner   string       `json:"owner,omitempty"`
	Side    string       `json:"side,omitempty"`
	Count   int          `json:"count,omitempty"`
	Weight  int          `json:"weight,omitempty"` // of a permit
	Token   int64        `json:"token,omitempty"`
	HeldMs  int64        `json:"held_ms,omitempty"` // since it was first seen
	Place   int          `json:"place,omitempty"`
	Waiting int          `json:"waiting"`
	Client  *look.Client `json:"client,omitempty"`
	Error   string       `json:"error,omitempty"`
}

// follower finds the changes between two looks at a lock.
type follower struct {
	name    string
	begun   bool
	failing bool
	free    bool
	at      time.Time // of the last look
	holders map[string]seen
	waiters map[string]look.Waiter
}

// seen is a holder as it was seen last.
type seen struct {
	look.Holder
	since time.Time
}

func newFollower(name string) *follower {
	return &follower{name: name, holders: make(map[string]seen), waiters: make(map[string]look.Waiter)}
}

// follow returns what has changed since the last look.
func (f *follower) follow(now time.Time, l *look.Lock, err error) (events []event) {
	if err != nil {
		if !f.failing {
			events = append(events, event{Time: now, Event: "unknown", Name: f.name, Error: message(err)})
		}
		f.failing = true
		return events
	}
	f.failing = false
	waiting := l.Live()
	add := func(e event) {
		e.Time, e.Name, e.Waiting = now, f.name, waiting
		events = append(events, e)
	}
	f.ended(now, l, add)
	f.began(now, l, add)
	f.lined(l, add)
	free := len(l.Holders) == 0
	if free && (!f.free || !f.begun) {
		add(event{Event: "free"})
	}
	f.free, f.begun, f.at = free, true, now
	return events
}

// ended reports holders whose field is gone.
func (f *follower) ended(now time.Time, l *look.Lock, add func(event)) {
	there := make(map[string]bool)
	for _, h := range l.Holders {
		there[keyOf(h)] = true
	}
	for key, h := range f.holders {
		if there[key] {
			continue
		}
		delete(f.holders, key)
		e := event{Event: "ended", Owner: h.Owner, Side: h.Side, HeldMs: now.Sub(h.since).Milliseconds(), Client: h.Client}
		// The end of a min-hold placeholder is regular, and no loss of a lease.
		if !h.MinHold && h.TTLms >= 0 && now.Sub(f.at) >= h.TTL() {
			e.Event = "expired"
		}
		add(e)
	}
}

// keyOf identifies a holder.
func keyOf(h look.Holder) string {
	if h.MinHold {
		return h.Owner + " " + h.Side + " min hold"
	}
	return h.Owner + " " + h.Side
}

// began reports new holders, and changed hold counts.
func (f *follower) began(now time.Time, l *look.Lock, add func(event)) {
	for _, h := range l.Holders {
		key := keyOf(h)
		e := event{Owner: h.Owner, Side: h.Side, Count: h.Count, Weight: h.Weight, Token: l.Token, Client: h.Client}
		known, had := f.holders[key]
		switch {
		case !had:
			known.since, e.Event = now, "held"
			if h.MinHold {
				e.Event = "min hold"
			}
		case known.Count != h.Count:
			e.Event = "count"
		}
		known.Holder = h
		f.holders[key] = known
		if e.Event != "" {
			add(e)
		}
	}
}

// lined reports changes in the line.
func (f *follower) lined(l *look.Lock, add func(event)) {
	now := make(map[string]look.Waiter)
	for i, w := range l.Waiters {
		if w.State == look.Expired {
			continue
		}
		now[w.Owner] = w
		e := event{Owner: w.Owner, Place: i + 1, Client: w.Client}
		before, had := f.waiters[w.Owner]
		switch {
		case !had:
			e.Event = "waits"
		case before.State != w.State && w.State == look.Passed:
			e.Event = "skipped"
		default:
			continue
		}
		add(e)
	}
	for owner, w := range f.waiters {
		_, waits := now[owner]
		_, holds := f.holders[owner+" "]
		if _, writes := f.holders[owner+" write"]; !waits && !holds && !writes {
			add(event{Event: "left", Owner: owner, Client: w.Client})
		}
	}
	f.waiters = now
}

// style is how an event looks.
func (e event) style() style {
	switch e.Event {
	case "held":
		return green
	case "expired", "unknown":
		return red
	case "skipped":
		return yellow
	case "waits", "left", "free":
		return dim
	default:
		return normal
	}
}

// text is what an event says for eyes.
func (e event) text() string {
	var parts []string
	if e.Owner != "" {
		parts = append(parts, who(e.Owner, e.Client))
	}
	if e.Side != "" {
		parts = append(parts, e.Side)
	}
	if e.Count > 1 || e.Event == "count" {
		parts = append(parts, fmt.Sprintf("count %d", e.Count))
	}
	if e.Weight > 1 {
		parts = append(parts, fmt.Sprintf("weight %d", e.Weight))
	}
	if e.Token != 0 {
		parts = append(parts, fmt.Sprintf("token %d", e.Token))
	}
	if e.Event == "ended" || e.Event == "expired" {
		parts = append(parts, "after "+short(time.Duration(e.HeldMs)*time.Millisecond))
	}
	if e.Place > 0 {
		parts = append(parts, fmt.Sprintf("place %d", e.Place))
	}
	if e.Event == "held" && e.Waiting > 0 {
		parts = append(parts, fmt.Sprintf("%d in line", e.Waiting))
	}
	if e.Error != "" {
		parts = append(parts, clean(e.Error))
	}
	return strings.Join(parts, ", ")
}
