package doctor

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/cmd/relock/internal/look"
	"github.com/relock-go/relock/cmd/relock/internal/target"
)

// slow is a round trip that renewals and hand-overs feel.
const slow = 100 * time.Millisecond

// tries are how often a round trip is made. The quickest one counts: a machine that is busy makes some of them slow.
const tries = 5

// script looks at whether scripts are run, and how fast.
func (e *Exam) script(ctx context.Context, n *target.Node) {
	took, err := quickest(func() error { return n.Redis.Eval(ctx, "return redis.call('exists', KEYS[1])", []string{e.Name}).Err() })
	if err != nil {
		e.note(Broken, "scripts", remedy(err, "allow +eval +evalsha +exists, and the keys of locks"), "refused: %v", err)
		return
	}
	e.speed("scripts", fmt.Sprintf("a round trip takes %v", round(took)), took)
}

// quickest returns how long the quickest try of f takes.
func quickest(f func() error) (time.Duration, error) {
	least := time.Duration(math.MaxInt64)
	for range tries {
		began := time.Now()
		if err := f(); err != nil {
			return 0, err
		}
		least = min(least, time.Since(began))
	}
	return least, nil
}

// messages checks whether a waiter receives the message of a release.
func (e *Exam) messages(ctx context.Context, n *target.Node) {
	names, err := look.NamesOf(e.Name)
	if err != nil {
		e.note(Broken, "messages", "", "%v", err)
		return
	}
	sub := n.Redis.Subscribe(ctx, names.Channel)
	took, err := e.roundTrip(ctx, sub, func() error { return n.Redis.Publish(ctx, names.Channel, "0").Err() })
	if err != nil {
		e.note(Warning, "messages", remedy(err, "allow +subscribe +unsubscribe +publish, and the channels of locks"), "waiters have to poll: %v", err)
	} else {
		e.speed("messages", fmt.Sprintf("a message takes %v", round(took)), took)
	}
	if n.Kind != target.Cluster {
		return
	}
	sub = n.Redis.SSubscribe(ctx, names.Channel)
	took, err = e.roundTrip(ctx, sub, func() error { return n.Redis.SPublish(ctx, names.Channel, "0").Err() })
	if err != nil {
		e.note(Fine, "sharded messages", "", "not available (WithShardedPubSub in Go): %v", err)
	} else {
		e.speed("sharded messages", fmt.Sprintf("to be had (WithShardedPubSub in Go): %v", round(took)), took)
	}
}

func (e *Exam) speed(check, text string, took time.Duration) {
	if took > slow {
		e.note(Warning, check, "use a --ttl of at least 100 times that", "slow: %s", text)
		return
	}
	e.note(Fine, check, "", "%s", text)
}

// roundTrip returns how long a message takes.
func (e *Exam) roundTrip(ctx context.Context, sub *redis.PubSub, publish func() error) (time.Duration, error) {
	defer sub.Close()
	ctx, cancel := context.WithTimeout(ctx, e.Timeout)
	defer cancel()
	if _, err := sub.Receive(ctx); err != nil {
		return 0, err
	}
	return quickest(func() error {
		if err := publish(); err != nil {
			return err
		}
		_, err := sub.ReceiveMessage(ctx)
		return err
	})
}
