package look

import (
	"context"

	"github.com/relock-go/relock/cmd/relock/internal/target"
	"github.com/relock-go/relock/internal/deadlock"
	"github.com/relock-go/relock/internal/keys"
)

// NoteWaits notes with each holder what it has waited for, for long: its process publishes that. There is nothing of it on
// a quorum.
func NoteWaits(ctx context.Context, t *target.Target, locks []*Lock) error {
	if t.Quorum() {
		return nil
	}
	rdb := t.Nodes[0].Redis
	published := make(map[string]string) // by lock and field
	for _, l := range locks {
		if len(l.Holders) == 0 || l.Kind == Semaphore {
			continue
		}
		waits, err := rdb.HGetAll(ctx, keys.WaitsOf(l.Name)).Result()
		if err != nil {
			return err
		}
		for field, wait := range waits {
			published[l.Name+" "+field] = wait
		}
	}
	for _, l := range locks {
		for i := range l.Holders {
			l.Holders[i].Waits = deadlock.Published(published[l.Name+" "+l.Holders[i].field()])
		}
	}
	return nil
}

// field returns the field of a holder on Redis.
func (h *Holder) field() string {
	switch {
	case h.MinHold:
		return "" // nobody
	case h.Side == "write":
		return keys.AsWriter(h.Owner)
	default:
		return h.Owner
	}
}

// Deadlocks returns the deadlocks of the holders of locks, each once, as text. Only waits for these locks are followed.
func Deadlocks(locks []*Lock) (all []string) {
	holders := make(map[string][]deadlock.Holder)
	for _, l := range locks {
		for _, h := range l.Holders {
			holders[l.Name] = append(holders[l.Name], deadlock.Holder{Field: h.field(), Wait: h.Waits})
		}
	}
	read := func(key string) ([]deadlock.Holder, error) {
		if found, is := holders[key]; is {
			return found, nil
		}
		return []deadlock.Holder{{}}, nil // somebody who may go on
	}
	seen := make(map[string]bool)
	for _, l := range locks {
		for _, h := range l.Holders {
			if h.Waits == nil || seen[h.Waits.ID] {
				continue
			}
			d, err := deadlock.Find(h.Waits, read)
			if err != nil || d == nil {
				continue
			}
			for _, id := range d.IDs() {
				seen[id] = true
			}
			all = append(all, d.String())
		}
	}
	return all
}
