package deadlock

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/goroutine"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redisexec"
)

// The scripts: see [redisexec.Script].
var (
	//go:embed publish.lua
	publishSource string
	//go:embed holders.lua
	holdersSource string

	PublishScript = redisexec.NewScript(publishSource)
	HoldersScript = redisexec.NewScript(holdersSource)
)

const (
	// interval is the least time between two publications of a wait, and the usual one between two looks for a deadlock. After
	// youth, if no deadlock is in sight, it is calm. So a wait that has become long is noticed after calm at most.
	interval, calm, youth = 500 * time.Millisecond, 2 * time.Second, 30 * time.Second
	// hindsight is the time between two looks at what the holder waits for, if the waiter itself holds nothing.
	hindsight = time.Minute
	// life of what is published: a look may take long, and a command may fail.
	life = 3 * calm
	// mostHolds bounds the locks beside which a wait is published, mostAtOnce the waits that are published at a time, and
	// mostKeys the keys that a look reads.
	mostHolds, mostAtOnce, mostKeys = 64, 64, 200
)

// Waiter is an owner of this process that has waited for long enough.
type Waiter struct {
	ID    string // of this wait, within this process
	Since time.Time
	For   []string // the keys
	Owner string   // for people
	Holds []Held   // what the owner holds; none: it can be in no deadlock

	Reported, Shared bool // see [Wait]

	// Behind is called with what the holder of its lock waits for; "": nothing is known.
	Behind func(text string)
	// Found is called when it is in a deadlock, after each look. ends: this wait is to end.
	Found func(text string, ends bool)
}

// Held is one lock that an owner holds.
type Held struct{ Key, Field string }

// Checker looks for deadlocks while owners of one client wait for long.
type Checker struct {
	life    goroutine.Life
	long    func() ([]*Waiter, time.Duration)
	exec    *redisexec.Executor
	process string // begins the IDs of its waits
	host    string

	mu      sync.Mutex
	running bool // there is the goroutine; after Close it stays set

	// These belong to the goroutine.
	known map[string]*known // by the ID within this process; of the last look
	next  string            // the ID of the wait that the last look did not come to; "": it came to all
}

// known is what is known of one wait.
type known struct {
	wait       Wait          // as it was published last
	generation int           // how many of its publications were not answered
	published  clock.Instant // when the last publication was answered
	first      *Deadlock     // the one that it may be in
	looked     clock.Instant // at what its holder waits for
}

// NewChecker returns a checker for a client that uses exec. long returns the owners that have waited for long enough, and in
// what time the next one will have; negative: no other one waits.
func NewChecker(life goroutine.Life, long func() ([]*Waiter, time.Duration), exec *redisexec.Executor) *Checker {
	host, _ := os.Hostname()
	return &Checker{
		life: life, long: long, exec: exec, process: uuid.NewString(),
		host: host + ":" + strconv.Itoa(os.Getpid()), known: make(map[string]*known),
	}
}

// Start records that an owner waits. It costs a mutex while the checker runs.
func (c *Checker) Start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.running {
		c.running = true
		c.life.Go(c.run)
	}
}

// run looks in intervals, until no owner waits or the client is closed.
func (c *Checker) run() {
	for {
		asOf := c.life.Now()
		waiters, next := c.waiters()
		if len(waiters) == 0 && next < 0 {
			return
		}
		pause := c.check(waiters, asOf)
		if next >= 0 {
			pause = min(pause, max(next, interval/5))
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-c.life.Closing:
			timer.Stop()
			return
		}
	}
}

// waiters returns those of the client. If no owner waits, the goroutine ends.
func (c *Checker) waiters() ([]*Waiter, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	waiters, next := c.long()
	c.running = len(waiters) > 0 || next >= 0
	return waiters, next
}

// check publishes the waits of owners that hold something, and looks for deadlocks. All of waiters still waited at asOf. It
// returns when to do so again.
func (c *Checker) check(waiters []*Waiter, asOf clock.Instant) (pause time.Duration) {
	before := c.known
	c.known = make(map[string]*known)
	for some := range slices.Chunk(waiters, mostAtOnce) {
		var all sync.WaitGroup
		for _, w := range some {
			k := cmp.Or(before[w.ID], new(known))
			c.known[w.ID] = k
			all.Go(func() { c.publish(w, k, asOf) })
		}
		all.Wait()
	}
	// If it cannot come to all in one look, it goes on with the next one.
	if i := slices.IndexFunc(waiters, func(w *Waiter) bool { return w.ID == c.next }); i > 0 {
		waiters = slices.Concat(waiters[i:], waiters[:i])
	}
	c.next = ""
	r := &reader{checker: c, began: c.life.Now(), read: make(map[string]reading)}
	for i, w := range waiters {
		k := c.known[w.ID]
		if len(w.Holds) == 0 && asOf.Since(k.looked) < hindsight {
			continue
		}
		if len(w.Holds) > 0 {
			c.find(w, k, r)
		}
		if r.full && i > 0 {
			c.next = w.ID
			break
		}
		k.looked = asOf
		w.Behind(behind(w.For, r.holders))
	}
	pause = calm
	for _, w := range waiters {
		if len(w.Holds) > 0 && (c.known[w.ID].first != nil || asOf.Time().Sub(w.Since) < youth) {
			pause = interval
		}
	}
	return pause
}

// publish publishes the wait of w beside each lock that its owner holds, and waits for the answers. Without an answer it may
// arrive later, when the wait is over. Then the wait gets another ID, so that nothing follows from what was published before.
//
// Others read that w waited at asOf. That is an interval or more after the last publication was answered: see confirms.
func (c *Checker) publish(w *Waiter, k *known, asOf clock.Instant) {
	if len(w.Holds) == 0 || k.wait.Seq > 0 && asOf.Mono-k.published.Mono < interval {
		return
	}
	if !utf8.ValidString(strings.Join(w.For, " ")) { // in JSON it would be another name
		return
	}
	k.wait = Wait{
		ID:  fmt.Sprintf("%s:%s:%d", c.process, w.ID, k.generation),
		Seq: k.wait.Seq + 1, Since: w.Since.UnixMilli(), For: w.For, Owner: w.Owner, Host: c.host,
		Reported: w.Reported, Shared: w.Shared,
	}
	text, _ := json.Marshal(&k.wait)
	for _, h := range w.Holds[:min(len(w.Holds), mostHolds)] {
		if _, out := c.sendOnce(PublishScript, []any{keys.WaitsOf(h.Key)}, h.Field, life.Milliseconds(), string(text)); out.Err != nil {
			k.generation++
			k.first = nil
			break
		}
	}
	k.published = c.life.Now()
}

// sendOnce sends a script once. After a failure the next look sends it again.
func (c *Checker) sendOnce(s *redisexec.Script, keys []any, args ...any) (any, redisexec.Outcome) {
	return c.exec.Run(c.life.Ctx, redisexec.CallOptions{Attempts: 1}, s, keys, args...)
}

// reader reads the holders of keys from Redis, each key once, for the waits of one look.
type reader struct {
	checker *Checker
	read    map[string]reading
	began   clock.Instant
	full    bool          // it has read as many as it may, or for as long
	oldest  clock.Instant // the time of the oldest reading that was used for the current wait
}

// reading is what was read, after at.
type reading struct {
	holders []Holder
	at      clock.Instant
}

// holders returns the holders of key.
func (r *reader) holders(key string) ([]Holder, error) {
	found, is := r.read[key]
	if !is {
		found.at = r.checker.life.Now()
		if r.full = len(r.read) == mostKeys || found.at.Since(r.began) > calm; r.full {
			return nil, errTooMany
		}
		reply, out := r.checker.sendOnce(HoldersScript, []any{key, keys.WaitsOf(key)})
		if out.Err != nil {
			return nil, out.Err
		}
		words, _ := reply.([]any)
		for pair := range slices.Chunk(words, 2) {
			field, _ := pair[0].(string)
			wait, _ := pair[len(pair)-1].(string)
			found.holders = append(found.holders, Holder{Field: field, Wait: Published(wait)})
		}
		r.read[key] = found
	}
	if found.at.Mono < r.oldest.Mono {
		r.oldest = found.at
	}
	return found.holders, nil
}

// find looks for a deadlock that w is in. It counts when it is found again: see the package.
func (c *Checker) find(w *Waiter, k *known, r *reader) {
	own := k.wait
	r.oldest = c.life.Now()
	d, err := Find(&own, r.holders)
	if d != nil {
		d.took = c.life.Now().Since(r.oldest)
	}
	switch {
	case err != nil && r.full: // it is found or not by the next look
	case err != nil || d == nil:
		k.first = nil
	// mutant: deadlock-unconfirmed/1
	case k.first == nil || !d.is(k.first):
		if k.first = d; d.took > life { // a clock was set, or the process did not run
			k.first = nil
		}
	// mutant: deadlock-unconfirmed/2, deadlock-stale
	case d.confirms(k.first):
		w.Found(d.String(), d.victim() == k.wait.ID)
	}
}

// behind describes what the holder of one of the keys waits for.
func behind(of []string, look func(key string) ([]Holder, error)) string {
	for _, key := range of {
		holders, err := look(key)
		if err != nil {
			return ""
		}
		for _, h := range holders {
			if h.Wait != nil {
				return fmt.Sprintf("%s waits for %s", h.Wait.who(), strings.Join(quoted(h.Wait.For), ", "))
			}
		}
	}
	return ""
}

func quoted(keys []string) []string {
	var all []string
	for _, key := range keys {
		all = append(all, strconv.Quote(key))
	}
	return all
}
