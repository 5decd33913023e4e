package cli

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/relock-go/relock/cmd/relock/internal/look"
	"github.com/relock-go/relock/internal/keys"
)

// A wait is shown after a moment, and then kept up to date.
const (
	quietWait     = time.Second
	progressEvery = time.Second
)

// showProgress shows on a terminal who is waited for, until the returned function is called.
func (r *runner) showProgress() (done func()) {
	if !r.app.errTTY || r.flags.noWait || r.flags.log == "json" {
		return func() {}
	}
	const clear = "\r\x1b[K"
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex
	shown := false
	go r.progress(ctx, func(line string) {
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() == nil {
			fmt.Fprint(r.err, clear+line)
			shown = true
		}
	})
	return func() { // it does not wait for Redis
		mu.Lock()
		defer mu.Unlock()
		cancel()
		if shown {
			fmt.Fprint(r.err, clear)
		}
	}
}

func (r *runner) progress(ctx context.Context, show func(line string)) {
	began := time.Now()
	r.ids = map[string]bool{r.locks.ID(): true}
	var holder string
	var since time.Time
	for pause := quietWait; ; pause = progressEvery {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		r.ids[r.locks.ID()] = true
		l, err := r.look(ctx)
		text := "Redis does not answer"
		if err == nil {
			if now := holderOf(l); now != holder {
				holder, since = now, time.Now()
			}
			text = r.situation(l, time.Since(since))
		}
		line := []rune(clean(fmt.Sprintf("relock: %s for %s: %s", short(time.Since(began).Truncate(time.Second)), r.name, text)))
		show(string(line[:min(len(line), r.app.width-1)]))
	}
}

// holderOf is the first that has l; "" if none has.
func holderOf(l *look.Lock) string {
	if len(l.Holders) == 0 {
		return ""
	}
	return l.Holders[0].Owner
}

// situation returns who has l, and the position of this process in line.
func (r *runner) situation(l *look.Lock, had time.Duration) string {
	text := "it is free"
	if r.flags.slots > 0 {
		text = fmt.Sprintf("%d slots in use (--slots %d)", l.InUse, r.flags.slots)
	} else if len(l.Holders) > 0 {
		text = "held by " + who(l.Holders[0].Owner, l.Holders[0].Client)
		if more := len(l.Holders) - 1; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		if had > progressEvery {
			text += fmt.Sprintf(" for %s or longer", short(had.Truncate(time.Second)))
		}
	}
	for i, w := range l.Waiters {
		if r.ids[keys.ClientOf(w.Owner)] {
			return text + fmt.Sprintf(", place %d of %d in line", i+1, l.Waiting)
		}
	}
	return text
}
