package look

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/keys"
)

// Client is who an owner's client said it is: one of this library that was made WithClientInfo.
type Client struct {
	Host    string `json:"host,omitempty"`
	PID     string `json:"pid,omitempty"`
	Program string `json:"program,omitempty"`
	Since   string `json:"since,omitempty"`
}

// identify notes with each holder and waiter who its client is, as far as that is known.
func identify(ctx context.Context, rdb redis.UniversalClient, locks []*Lock) {
	asked := make(map[string]*redis.MapStringStringCmd)
	pipe := rdb.Pipeline()
	ask := func(owner string) {
		if id := keys.ClientOf(owner); asked[id] == nil {
			asked[id] = pipe.HGetAll(ctx, keys.OfClient(id))
		}
	}
	each(locks, func(owner string, _ **Client) { ask(owner) })
	if len(asked) == 0 {
		return
	}
	_, _ = pipe.Exec(ctx) // who may not read them sees the owners alone
	known := make(map[string]*Client)
	for id, cmd := range asked {
		if m := cmd.Val(); len(m) > 0 {
			known[id] = &Client{Host: m["host"], PID: m["pid"], Program: m["program"], Since: m["since"]}
		}
	}
	each(locks, func(owner string, c **Client) { *c = known[keys.ClientOf(owner)] })
}

// each calls f for every owner in locks.
func each(locks []*Lock, f func(owner string, client **Client)) {
	for _, l := range locks {
		for i := range l.Holders {
			f(l.Holders[i].Owner, &l.Holders[i].Client)
		}
		for i := range l.Waiters {
			f(l.Waiters[i].Owner, &l.Waiters[i].Client)
		}
	}
}
