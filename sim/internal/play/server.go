package play

import (
	"fmt"
	"hash/fnv"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	mini "github.com/alicebob/miniredis/v2/server"

	"github.com/relock-go/relock/internal/linktest"
	"github.com/relock-go/relock/sim/internal/embedded"
)

// server is an embedded Redis with real Lua. It is reached by the links of a play only.
type server struct {
	addr  string
	mini  *miniredis.Miniredis
	serve func(net.Conn)

	mu       sync.Mutex // guards the rest
	ahead    time.Duration
	loading  time.Time // until then it refuses all commands that need data
	down     time.Time // until then it refuses connections, also of a process that starts meanwhile
	frozen   time.Time // until then it does not run, also for such a process
	commands int
	trace    uint64 // of all commands so far, in order, with their times
	began    time.Time
}

// newServer starts the server with the number. Its clock is ahead by the given time.
func newServer(number int, ahead time.Duration) (*server, error) {
	m, serve, err := embedded.Start()
	if err != nil {
		return nil, err
	}
	s := &server{addr: embedded.Addr(number), mini: m, serve: serve, ahead: ahead, began: time.Now()}
	if ahead != 0 {
		m.SetTime(time.Now().Add(ahead))
	}
	m.ClockTTL(true)
	m.Server().SetPreHook(s.before)
	return s, nil
}

// link returns a link to the server.
func (s *server) link(latency time.Duration, seed uint64) *linktest.Link {
	return linktest.NewLink(s.addr, s.serve, s.arrives, latency, seed)
}

// arrives sets the server's clock when a command is about to run.
func (s *server) arrives() {
	s.mu.Lock()
	ahead := s.ahead
	s.mu.Unlock()
	if ahead != 0 {
		s.mini.SetTime(time.Now().Add(ahead))
	}
}

// before runs before each command, including commands of scripts, for which the server is locked. It reports whether it has
// answered the command.
func (s *server) before(peer *mini.Peer, name string, args ...string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if strings.HasPrefix(name, "EVAL") {
		s.commands++
		h := fnv.New64a()
		fmt.Fprint(h, s.trace, now.Sub(s.began), name, args)
		s.trace = h.Sum64()
	}
	if now.Before(s.loading) && !slices.Contains(needNoData, name) {
		peer.WriteError("LOADING Redis is loading the dataset in memory")
		return true
	}
	return false
}

// needNoData are commands that Redis answers while it loads its data. If they were refused, go-redis would try again while it
// holds the mutex of a subscription, and while another goroutine waits for that mutex the clock of the bubble stands still.
var needNoData = []string{"HELLO", "AUTH", "CLIENT", "SUBSCRIBE", "UNSUBSCRIBE"}

// step sets the clock of the server.
func (s *server) step(d time.Duration) {
	s.mu.Lock()
	s.ahead += d
	if s.ahead == 0 {
		s.ahead = time.Microsecond // or miniredis would stand still at the time before
	}
	now := time.Now().Add(s.ahead)
	s.mu.Unlock()
	s.mini.SetTime(now)
}

// reached applies the current faults of the server to a new link.
func (s *server) reached(l *linktest.Link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.Refuse(time.Until(s.down))
	l.Freeze(time.Until(s.frozen))
}

// until records that the server is down, or frozen, for d from now on.
func (s *server) until(t *time.Time, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if end := time.Now().Add(d); end.After(*t) {
		*t = end
	}
}

// load makes the server refuse all commands that need data for d, from now on.
func (s *server) load(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loading = time.Now().Add(d)
}

// copyOf is the data of a replica.
type copyOf struct {
	at   time.Time
	keys []copied
}

type copied struct {
	name   string
	ttl    time.Duration
	text   string
	hash   map[string]string
	scores map[string]float64
}

// copy returns the current data of the server.
func (s *server) copy() copyOf {
	s.arrives()
	c := copyOf{at: time.Now()}
	for _, name := range s.mini.Keys() {
		k := copied{name: name, ttl: s.mini.TTL(name)}
		switch s.mini.Type(name) {
		case "hash":
			k.hash = make(map[string]string)
			fields, _ := s.mini.HKeys(name)
			for _, field := range fields {
				k.hash[field] = s.mini.HGet(name, field)
			}
		case "zset":
			k.scores, _ = s.mini.SortedSet(name)
		default:
			k.text, _ = s.mini.Get(name)
		}
		c.keys = append(c.keys, k)
	}
	return c
}

// become replaces the data of the server by the data of a replica at an earlier time.
func (s *server) become(c copyOf) {
	s.mini.FlushAll()
	gone := time.Since(c.at)
	for _, k := range c.keys {
		if k.ttl > 0 && k.ttl <= gone {
			continue
		}
		switch {
		case k.hash != nil:
			for field, value := range k.hash {
				s.mini.HSet(k.name, field, value)
			}
		case k.scores != nil:
			for member, score := range k.scores {
				_, _ = s.mini.ZAdd(k.name, score, member)
			}
		default:
			_ = s.mini.Set(k.name, k.text)
		}
		if k.ttl > 0 {
			s.mini.SetTTL(k.name, k.ttl-gone)
		}
	}
}

// eternal returns the keys that have no expiry.
func (s *server) eternal() []string {
	return slices.DeleteFunc(s.mini.Keys(), func(name string) bool { return s.mini.TTL(name) != 0 })
}

// left returns the keys that should not exist when all leases have ended.
func (s *server) left() []string {
	s.arrives()
	var left []string
	for _, name := range s.mini.Keys() {
		if !strings.HasPrefix(name, "redisson_lock_token:") {
			left = append(left, fmt.Sprintf("%s (for %v)", name, s.mini.TTL(name)))
		}
	}
	return left
}
