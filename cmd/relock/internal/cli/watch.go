package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/relock-go/relock/cmd/relock/internal/look"
	"github.com/relock-go/relock/cmd/relock/internal/target"
)

const watchText = `Follow the lock NAME, or the permits of the semaphore NAME, until you interrupt it: who gets it, for how long, and who
waits. Each change is one line. relock reads the state when a message announces a change, and every --interval. It may
miss holds that are shorter than that, if they follow each other within one process, and permits that are.

    held      an owner has acquired it    waits    a waiter has joined the line
    count     its hold count has changed  left     a waiter has left the line without the lock
    ended     it was released or forced   skipped  a waiter was skipped, because its process was not subscribed
              open, or --min-hold ended   free     no owner holds it
    min hold  it was released before      unknown  Redis does not answer
              the end of --min-hold
    expired   its lease has expired`

func (a *app) watchCommand() *cobra.Command {
	interval := 500 * time.Millisecond
	cmd := &cobra.Command{
		Use: "watch NAME", Short: "Follow who gets a lock, live", Long: watchText,
		Example: "  relock watch deploy", Args: exactly(1, "one name"), ValidArgsFunction: a.namesLike,
		RunE: func(cmd *cobra.Command, args []string) error {
			if interval < 10*time.Millisecond {
				return usage("--interval %v: must be at least 10ms", interval)
			}
			return a.look(func(t *target.Target) error { return a.watch(cmd, t, args[0], interval) })
		},
	}
	cmd.Flags().DurationVar(&interval, "interval", interval, "the longest time between two looks")
	a.lookFlags(cmd, "a line for each change")
	return cmd
}

// watch shows changes until it is interrupted.
func (a *app) watch(cmd *cobra.Command, t *target.Target, name string, interval time.Duration) error {
	names, err := look.NamesOf(name)
	if err != nil {
		return err
	}
	if _, err := a.lookAt(cmd, t, name); err != nil { // before it listens, which would wait for Redis for longer
		return err
	}
	ctx := cmd.Context()
	changed, stop := listen(ctx, t, names)
	defer stop()
	f := newFollower(name)
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	for {
		l, err := a.lookAt(cmd, t, name)
		for _, e := range f.follow(time.Now(), l, err) {
			if err := a.showEvent(e); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-ticks.C:
		}
	}
}

func (a *app) showEvent(e event) error {
	if a.json {
		return a.printLine(e)
	}
	text := fmt.Sprintf("%s  %-11s  %s", e.Time.Format("15:04:05.000"), e.Event, e.text())
	_, err := fmt.Fprintln(a.out, a.paint(e.style(), text))
	return err
}

// listen returns a channel that is notified of messages about a lock. There are none if this user may not
// subscribe.
func listen(ctx context.Context, t *target.Target, names look.Names) (changed <-chan struct{}, stop func()) {
	news := make(chan struct{}, 1)
	var all []*redis.PubSub
	receive := func(p *redis.PubSub) {
		all = append(all, p)
		go func() {
			for range p.ChannelWithSubscriptions() { // also at a subscription, because no message from before it arrives
				select {
				case news <- struct{}{}:
				default:
				}
			}
		}()
	}
	for _, n := range t.Nodes {
		receive(n.Redis.Subscribe(ctx, names.Channel, names.RW))
		receive(n.Redis.PSubscribe(ctx, escape(names.Grants)+"*"))
		if n.Kind == target.Cluster {
			receive(n.Redis.SSubscribe(ctx, names.Channel))
			receive(n.Redis.SSubscribe(ctx, names.RW))
		}
	}
	return news, func() {
		for _, p := range all {
			_ = p.Close()
		}
	}
}

// escape returns text as a pattern that stands for it alone.
func escape(text string) string {
	var b []rune
	for _, r := range text {
		switch r {
		case '*', '?', '[', ']', '\\':
			b = append(b, '\\')
		}
		b = append(b, r)
	}
	return string(b)
}
