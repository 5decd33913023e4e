package main

import (
	"context"
	"errors"
	"fmt"
	"html"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/bench/contend"
	"github.com/relock-go/relock/bench/draw"
	"github.com/relock-go/relock/internal/redistest"
)

// The timeline of a loss: a holder is cut off from Redis while another process waits. What is drawn has
// happened: two clients of the library, a Redis, and a relay that stops.

const lossTTL = 3 * time.Second

// timeline is what happened when, in seconds from the moment at which the first process got the lock.
type timeline struct {
	TTL       float64
	Renewed   []float64 // by an answer from Redis
	Cut       float64   // nothing passes between the holder and Redis from then on
	Failed    []float64 // renewals without an answer
	Cancelled float64   // the holder's context ended
	Gone      float64   // Redis had another owner
	Next      float64   // the waiter's Lock returned
}

// measureLoss plays a loss on the Redis at addr.
func measureLoss(ctx context.Context, addr string) (*timeline, error) {
	relay, err := redistest.StartRelay(addr)
	if err != nil {
		return nil, err
	}
	defer relay.Close()
	far, near := contend.GoRedis(setup{Addr: relay.Addr}), contend.GoRedis(setup{Addr: addr})
	defer far.Close()
	defer near.Close()

	t := &timeline{TTL: lossTTL.Seconds()}
	var mu sync.Mutex // guards began, and the lists that hooks write
	var began time.Time
	now := func() float64 { return time.Since(began).Seconds() }
	note := func(list *[]float64) func(relock.Event) {
		return func(relock.Event) {
			mu.Lock()
			defer mu.Unlock()
			*list = append(*list, now())
		}
	}
	waits, renewed := make(chan struct{}), make(chan struct{}, 8)
	holder, err1 := relock.New(far, relock.WithTTL(lossTTL), relock.WithHooks(relock.JoinHooks(
		relock.Hooks{Renewed: note(&t.Renewed), RenewFailed: note(&t.Failed)},
		relock.Hooks{Renewed: func(relock.Event) { renewed <- struct{}{} }})))
	waiter, err2 := relock.New(near, relock.WithTTL(lossTTL), relock.WithHooks(relock.Hooks{Contended: func(relock.Event) { close(waits) }}))
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	defer holder.Close()
	defer waiter.Close()

	name := fmt.Sprintf("bench:loss:%d", time.Now().UnixNano())
	m := holder.Mutex(name)
	if err := m.Lock(ctx); err != nil {
		return nil, err
	}
	mu.Lock()
	began = time.Now()
	mu.Unlock()
	held := m.Context(ctx)
	first, err := owners(ctx, near, name)
	if err != nil {
		return nil, err
	}
	got := make(chan error, 1)
	go func() {
		err := waiter.Mutex(name).Lock(ctx)
		t.Next = now()
		got <- err
	}()
	<-waits
	<-renewed
	<-renewed
	relay.BlackHole(true)
	t.Cut = now()
	gone := make(chan error, 1)
	go func() { gone <- awaitOthers(ctx, near, name, first) }()
	<-held.Done()
	t.Cancelled = now()
	err = <-gone
	t.Gone = now()
	err = errors.Join(err, <-got)
	if err == nil && !errors.Is(context.Cause(held), relock.ErrLost) {
		err = fmt.Errorf("the hold ended with %w, not with a loss", context.Cause(held))
	}
	return t, err
}

// awaitOthers returns when others than the first have the lock on Redis.
func awaitOthers(ctx context.Context, rdb *redis.Client, name, first string) error {
	for {
		now, err := owners(ctx, rdb, name)
		if err != nil || now != first {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// owners returns who has the lock on Redis.
func owners(ctx context.Context, rdb *redis.Client, name string) (string, error) {
	fields, err := rdb.HKeys(ctx, name).Result()
	return strings.Join(fields, " "), err
}

const lossStyle = draw.Style + `.mark{stroke:#116329;stroke-width:3}.bad{fill:#cf222e;stroke:#cf222e}.mark.bad{stroke:#cf222e}.when{stroke:#57606a;stroke-dasharray:3 3}` +
	`@media(prefers-color-scheme:dark){.mark{stroke:#aff5b4}.bad{fill:#f85149;stroke:#f85149}.mark.bad{stroke:#f85149}.when{stroke:#9198a1}}`

// svg draws the timeline.
func (t *timeline) svg() string {
	if t == nil {
		return ""
	}
	const left, right, rows = 190, 690, 4
	last := t.Next + 0.4
	xOf := func(s float64) float64 { return left + s/last*(right-left) }
	var b strings.Builder
	text := func(class string, x float64, y int, anchor, s string) {
		fmt.Fprintf(&b, "<text class=\"%s\" text-anchor=\"%s\" x=\"%.1f\" y=\"%d\">%s</text>\n", class, anchor, x, y, html.EscapeString(s))
	}
	bar := func(class string, from, to float64, y int) {
		fmt.Fprintf(&b, "<rect class=\"%s\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"18\"/>\n", class, xOf(from), y, xOf(to)-xOf(from))
	}
	text("t", draw.Padding, 30, "start", fmt.Sprintf("A loss: the holder is cut off from Redis (TTL %.0f s)", t.TTL))
	const top, step = 60, 34
	for i, name := range []string{"network of the holder", "the hold's context", "the key on Redis", "the next holder"} {
		text("", draw.Padding, top+i*step+14, "start", name)
	}
	bar("relock", 0, t.Cut, top)
	bar("bad", t.Cut, last, top)
	bar("relock", 0, t.Cancelled, top+step)
	bar("relock", 0, t.Gone, top+2*step)
	bar("floor", 0, t.Next, top+3*step)
	bar("relock", t.Next, last, top+3*step)
	for _, at := range t.Renewed {
		fmt.Fprintf(&b, "<line class=\"mark\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/>\n", xOf(at), top+step-6, xOf(at), top+2*step+18)
	}
	for _, at := range t.Failed {
		fmt.Fprintf(&b, "<line class=\"mark bad\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/>\n", xOf(at), top+step-6, xOf(at), top+step+18)
	}
	bottom := top + rows*step
	for i, event := range []struct {
		at   float64
		what string
	}{
		{t.Cut, "cut off"},
		{t.Cancelled, "context cancelled: ErrLost"},
		{t.Next, fmt.Sprintf("another process has the lock, %.0f ms later", (t.Next-t.Cancelled)*1000)},
	} {
		y := bottom + 14 + i*20
		fmt.Fprintf(&b, "<line class=\"when\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/>\n", xOf(event.at), top-8, xOf(event.at), y+4)
		text("u", xOf(event.at)-6, y+4, "end", fmt.Sprintf("%.2f s: %s", event.at, event.what))
	}
	text("u", draw.Padding, bottom+84, "start", "Green lines: renewals that Redis answered. Each moves the deadline.")
	text("u", draw.Padding, bottom+102, "start", "Red lines: renewals without an answer.")
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img">`+
		"\n<title>The timeline of a loss</title>\n<style>%s</style>\n%s</svg>\n", draw.Width, bottom+116, lossStyle, b.String())
}
