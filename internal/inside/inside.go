// Package inside is a window into clients and handles of package relock, for the tests of this module that
// live outside of it: it shows what the API does not say. Package relock opens it, only tests look through
// it, which house_test.go checks, and nothing in it is promised to anyone.
package inside

import (
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/group"
	"github.com/relock-go/relock/internal/identity"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/line"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/undo"
	"github.com/relock-go/relock/internal/wake"
)

// Client is what the holds of a client share.
type Client struct {
	Patience   time.Duration
	Hub        Hub
	Undos      []*undo.Queue
	Identities *identity.Source
	Goroutines *group.Group
	Tickets    *atomic.Uint64
	Closed     func() bool
	Names      func() int // of which it keeps anything
	Undo       func(p protocol.Protocol, n undo.Name, fields ...string) (settled <-chan struct{})
}

// Hub wakes waiters by messages.
type Hub interface {
	Subscribe(channel string, wake func()) *wake.Subscription
	Suspect(channel string)
}

// Hold is one owner's use of a key, from the wish for it to the end.
type Hold struct {
	Keys      *keys.Set
	Field     string // on Redis
	Deadline  clock.Instant
	Longest   time.Duration // of all its leases
	Protocol  protocol.Protocol
	Terms     *protocol.Terms
	Held      bool
	Waiting   bool
	Awaited   bool               // another Lock of its owner queues behind it
	Turn      func() *queue.Bell // to poll that line, of one waiter of its process at a time
	Listening bool               // a message would reach it
	Line      func() *line.Line  // of its process, for the key; not on a quorum

	// Occupy keeps commands about its keys back until free is called.
	Occupy func() (free func())
}

// Mutex is what a handle of a lock asks for.
type Mutex struct {
	Keys     *keys.Set
	Terms    *protocol.Terms
	Protocol protocol.Protocol

	// Learned returns the last known holder of its first key, and since when Redis
	// does not answer, and why.
	Learned func() (holder string, out Outage)
	Wakes   func() uint64 // of the waiters for its first key
}

// Outage is since when Redis has not answered for a key.
type Outage struct {
	Asked, Failed clock.Instant
	Failure       error
}

// Package relock sets these. A client is a *relock.Client, a mutex a *relock.Mutex.
var (
	ClientOf func(client any) Client // or a mutex, for the client that it is of
	HoldsOn  func(client any, key string) []Hold
	OfMutex  func(mutex any) Mutex
	// TellFirst has a client tell Redis of each hand-over of a Mutex before the next waiter enters, as it
	// does where that wants a token.
	TellFirst func(client any)
	// Sides are the two sides of a *relock.RWMutex, each a *relock.Mutex.
	Sides func(rwmutex any) (write, read any)
	// NewClient is a client by a clock that can be set. opts is a []relock.ClientOption.
	NewClient func(rdb redis.UniversalClient, opts any, now clock.Clock) (client any)
	// Pipelining says whether clients that are made from now on have a pipeline if no option says so.
	Pipelining func(on bool)

	TryOptions   redisexec.CallOptions // of a try to acquire
	TrySplits    int                   // how many split votes TryLock tries again after
	GatheringMax time.Duration         // how long a MultiMutex keeps a key at most while it asks for all
)
