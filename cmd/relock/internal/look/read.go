package look

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/keys"
)

//go:embed look.lua
var source string

var script = redis.NewScript(source)

// mostWaiters are listed of one lock.
const mostWaiters = 1000

// Names is what belongs to one name on Redis.
type Names struct {
	Keys     []string // of the script: the lock first
	Timeouts string   // prefix of the keys of readers' levels
	Channel  string   // of a plain lock
	RW       string   // channel of a read-write lock
	Grants   string   // what the channels of grants begin with
}

// NamesOf returns what belongs to name. The error says why it can be no lock.
func NamesOf(name string) (Names, error) {
	var plain, rw, semaphore keys.Set
	for _, set := range []*keys.Set{&plain, &rw, &semaphore} {
		if err := set.Init("", []string{name}); err != nil {
			return Names{}, err
		}
	}
	rw.ReadWrite()
	semaphore.Semaphore()
	line := keys.LineOf(name)
	return Names{
		Keys: []string{name, plain.Counters[0], line.Queue, line.Entries, javaQueue(&plain), rw.RW.Claim,
			text(semaphore.Line[2]), text(semaphore.Line[3])},
		Timeouts: rw.RW.Timeouts, Channel: plain.Channels[0], RW: rw.Channels[0], Grants: keys.GrantsPrefix(name),
	}, nil
}

// javaQueue is the queue of Redisson's fair lock.
func javaQueue(set *keys.Set) string {
	switch key := set.Freeing[1].(type) {
	case *string:
		return *key
	case string:
		return key
	}
	return ""
}

// args returns the arguments of the script.
func (n Names) args() []any { return []any{n.Timeouts, n.Channel, n.RW, mostWaiters} }

// readAll returns the locks of these names, which can be locks. Those that are none are Foreign.
func readAll(ctx context.Context, rdb redis.UniversalClient, names []string) ([]*Lock, error) {
	all := make([]Names, len(names))
	cmds := make([]*redis.Cmd, len(names))
	pipe := rdb.Pipeline()
	for i, name := range names {
		var err error
		if all[i], err = NamesOf(name); err != nil {
			return nil, err
		}
		cmds[i] = script.EvalSha(ctx, pipe, all[i].Keys, all[i].args()...)
	}
	_, failed := pipe.Exec(ctx)
	locks := make([]*Lock, len(names))
	for i, cmd := range cmds {
		reply, err := cmd.Slice()
		if cmd.Val() == nil && cmd.Err() == nil {
			err = failed // it was never sent
		}
		if err != nil {
			reply, err = again(ctx, rdb, all[i], err)
		}
		if err == nil {
			locks[i], err = parse(names[i], reply)
		}
		if err != nil {
			return nil, err
		}
	}
	return locks, nil
}

// again reads a lock after a first try has failed: the script may be unknown, or this user may
// see only some of the keys.
func again(ctx context.Context, rdb redis.UniversalClient, n Names, err error) ([]any, error) {
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		var reply []any
		if reply, err = script.Eval(ctx, rdb, n.Keys, n.args()...).Slice(); err == nil {
			return reply, nil
		}
	}
	for _, few := range [][]string{n.Keys[:2], n.Keys[:1]} {
		if !redis.IsPermissionError(err) {
			break
		}
		var reply []any
		if reply, err = script.Run(ctx, rdb, few, n.args()...).Slice(); err == nil {
			return reply, nil
		}
	}
	return nil, err
}

// parse reads what the script says.
func parse(name string, reply []any) (*Lock, error) {
	if len(reply) != 11 {
		return nil, fmt.Errorf("the script answered with %d parts", len(reply))
	}
	pttl, length := number(reply[0]), number(reply[2])
	token, _ := strconv.ParseInt(text(reply[1]), 10, 64)
	l := &Lock{Name: name, Kind: Free, Token: token, Waiting: int(number(reply[5])), Listeners: int(number(reply[9])),
		Holders: []Holder{}, Waiters: []Waiter{}}
	if !l.readFields(reply[3], reply[4], pttl) || length < 0 || length > 0 && l.Kind == Free || !l.readPermits(reply[10]) {
		*l = Lock{Name: name, Kind: NoLock, Foreign: true, Holders: []Holder{}, Waiters: []Waiter{}}
		return l, nil
	}
	if len(l.Holders) > 0 {
		l.Held = true
		if l.Kind != Semaphore {
			l.TTLms = pttl
		}
	}
	l.readWaiters(reply[6], reply[7], text(reply[8]))
	return l, nil
}

// readFields notes who holds. false: the hash is no lock.
func (l *Lock) readFields(fields, lives any, pttl int64) bool {
	left := make(map[string]int64)
	lived, _ := lives.([]any)
	for i := 0; i+1 < len(lived); i += 2 {
		left[text(lived[i])] = number(lived[i+1])
	}
	all, _ := fields.([]any)
	mode := hasMode(all)
	for i := 0; i+1 < len(all); i += 2 {
		field, value := text(all[i]), text(all[i+1])
		if field == "mode" && (value == "read" || value == "write") {
			continue
		}
		count, err := strconv.Atoi(value)
		if !owners.MatchString(field) || err != nil || count < 1 {
			return false
		}
		h := Holder{Owner: field, Count: count, TTLms: pttl}
		if life, reads := left[field]; reads {
			if life == -2 {
				continue // a reader that has gone
			}
			h.Side, h.TTLms = "read", life
		} else if owner, writes := strings.CutSuffix(field, keys.WriteSuffix); writes && mode {
			h.Owner, h.Side = owner, "write"
		}
		if owner, kept := keys.ReplacedBy(h.Owner); kept {
			h.Owner, h.MinHold = owner, true
		}
		l.Holders = append(l.Holders, h)
	}
	switch {
	case mode:
		l.Kind = ReadWrite
	case len(all) > 0:
		l.Kind = Plain
	}
	slices.SortStableFunc(l.Holders, func(a, b Holder) int {
		if a.Side != b.Side {
			return -strings.Compare(a.Side, b.Side) // a writer first
		}
		return strings.Compare(a.Owner, b.Owner)
	})
	return true
}

// readPermits notes which permits are in use. false: the sorted set is no semaphore.
func (l *Lock) readPermits(members any) bool {
	all, _ := members.([]any)
	for i := 0; i+1 < len(all); i += 2 {
		parts := permits.FindStringSubmatch(text(all[i]))
		if parts == nil {
			return false
		}
		if parts[3] != "" {
			continue // one of several members of a permit
		}
		weight, err := strconv.Atoi(parts[2])
		if err != nil {
			return false
		}
		h := Holder{Owner: parts[0], Count: 1, Weight: weight, TTLms: number(all[i+1]), MinHold: parts[1] != ""}
		l.Kind, l.InUse, l.TTLms = Semaphore, l.InUse+weight, max(l.TTLms, h.TTLms)
		l.Holders = append(l.Holders, h)
	}
	slices.SortStableFunc(l.Holders, func(a, b Holder) int { return strings.Compare(a.Owner, b.Owner) })
	return true
}

// hasMode reports whether these fields are of a read-write lock.
func hasMode(fields []any) bool {
	for i := 0; i < len(fields); i += 2 {
		if text(fields[i]) == "mode" {
			return true
		}
	}
	return false
}

// readWaiters notes who waits.
func (l *Lock) readWaiters(line, java any, claim string) {
	places, _ := line.([]any)
	for i := 0; i+2 < len(places); i += 3 {
		w := Waiter{Owner: text(places[i]), Queue: Line, State: Waits}
		switch {
		case number(places[i+1]) <= 0:
			w.State = Expired
		case text(places[i+2]) == "1":
			w.State = Passed
		}
		l.Waiters = append(l.Waiters, w)
		if l.Kind == Free && permits.MatchString(w.Owner) {
			l.Kind = Semaphore
		}
	}
	if l.Kind == Semaphore {
		l.Listeners = -1 // its messages go to those alone that they are for
	}
	queue, _ := java.([]any)
	for _, owner := range queue {
		l.Waiters = append(l.Waiters, Waiter{Owner: text(owner), Queue: Java, State: Waits})
	}
	l.Waiting += len(queue)
	if _, writer, _ := strings.Cut(claim, " "); writer != "" {
		l.Waiters = append(l.Waiters, Waiter{Owner: keys.AsReader(writer), Queue: Claims, State: Waits})
		l.Waiting++
	}
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

// number is an integer; Lua's fractions come without them.
func number(v any) int64 {
	n, _ := v.(int64)
	return n
}
