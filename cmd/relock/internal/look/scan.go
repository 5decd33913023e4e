package look

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/cmd/relock/internal/target"
	"github.com/relock-go/relock/internal/keys"
)

// ErrPattern says that a pattern of names cannot be read.
var ErrPattern = errors.New("the pattern cannot be read, because of what is between its brackets")

// ErrPart says that a server has only some of the locks.
var ErrPart = errors.New("this server is a node of a Cluster, and has only some of its locks: use redis-cluster://")

// batch is how many names are read at once, and about how many keys a SCAN looks at.
const batch = 200

// helperPrefixes begin keys that belong to a lock and name it.
var helperPrefixes = []struct{ prefix, kind string }{
	{"relock_line:", "zset"},
	{"relock_line_permits:", "zset"},
	{"redisson_lock_queue:", "list"},
}

// Minority reports that too few nodes of a quorum answer to determine who holds a lock. Their answers count all the same.
type Minority struct {
	Answers, Nodes, Needed int
	Err                    error // of a node that does not answer
}

func (e *Minority) Error() string {
	return fmt.Sprintf("%d of %d nodes answer, and %d are needed to know who holds a lock: %v", e.Answers, e.Nodes, e.Needed, e.Err)
}

func (e *Minority) Unwrap() error { return e.Err }

// One returns what t has about name, also with an error that is a [Minority].
func One(ctx context.Context, t *target.Target, name string) (*Lock, error) {
	if _, err := NamesOf(name); err != nil {
		return nil, err
	}
	found, err := gather(t, func(n *target.Node) (map[string]*Lock, error) {
		locks, err := readAll(ctx, n.Redis, []string{name})
		if err != nil {
			return nil, err
		}
		if locks[0].Foreign {
			locks[0].Type = n.Redis.Type(ctx, name).Val()
		}
		identify(ctx, n.Redis, locks)
		return map[string]*Lock{name: locks[0]}, nil
	})
	if err != nil {
		return nil, err
	}
	return found.of(t, name), found.minority(t)
}

// All returns the locks of t whose names are like pattern, by name: those with an owner or a waiter. It does so also
// with an error that is a [Minority].
func All(ctx context.Context, t *target.Target, pattern string) ([]*Lock, error) {
	like, err := glob(pattern)
	if err != nil {
		return nil, err
	}
	found, err := gather(t, func(n *target.Node) (map[string]*Lock, error) { return allOn(ctx, n, pattern, like) })
	if err != nil {
		return nil, err
	}
	var locks []*Lock
	for _, name := range found.names() {
		locks = append(locks, found.of(t, name))
	}
	return locks, found.minority(t)
}

// allOn returns the locks of one node.
func allOn(ctx context.Context, n *target.Node, pattern string, like *regexp.Regexp) (map[string]*Lock, error) {
	names := make(map[string]bool)
	err := n.EachMaster(ctx, func(ctx context.Context, rdb *redis.Client) error {
		if n.Kind == target.Server {
			about, err := rdb.Info(ctx, "cluster").Result()
			var refused redis.Error // INFO, and maybe nothing else
			if err != nil && !errors.As(err, &refused) {
				return err
			}
			if strings.Contains(about, "cluster_enabled:1") {
				return ErrPart
			}
		}
		var err error
		for _, kind := range []string{"hash", "zset"} {
			if err == nil {
				err = scan(ctx, rdb, pattern, kind, func(key string) { names[key] = true })
			}
		}
		for _, h := range helperPrefixes {
			if err != nil {
				break
			}
			err = scan(ctx, rdb, h.prefix+"*", h.kind, func(key string) {
				if name := named(key, h.prefix); like.MatchString(name) {
					names[name] = true
				}
			})
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var possible []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if _, err := NamesOf(name); err == nil && !ours(name) {
			possible = append(possible, name)
		}
	}
	locks := make(map[string]*Lock)
	for some := range slices.Chunk(possible, batch) {
		read, err := readAll(ctx, n.Redis, some)
		if err != nil {
			return nil, err
		}
		read = slices.DeleteFunc(read, func(l *Lock) bool { return !l.Worth() })
		identify(ctx, n.Redis, read)
		for _, l := range read {
			locks[l.Name] = l
		}
	}
	return locks, nil
}

// scan calls f with each key like pattern, maybe more than once. Before Redis 6 all types are said.
func scan(ctx context.Context, rdb *redis.Client, pattern, kind string, f func(string)) error {
	words := []any{"scan", "0", "match", pattern, "count", 5 * batch, "type", kind}
	for {
		cmd := redis.NewScanCmd(ctx, nil, words...)
		err := rdb.Process(ctx, cmd)
		if err != nil && len(words) > 6 && redis.HasErrorPrefix(err, "syntax error") {
			words = words[:6]
			continue
		}
		if err != nil {
			return err
		}
		found, cursor := cmd.Val()
		for _, key := range found {
			f(key)
		}
		if cursor == 0 {
			return nil
		}
		words[1] = cursor
	}
}

// named returns the name that a helper key with prefix belongs to.
func named(key, prefix string) string {
	rest := strings.TrimPrefix(key, prefix)
	rest = strings.TrimPrefix(rest, ":") // as of a line whose name has a {tag}
	if inner, found := strings.CutPrefix(rest, "{"); found && strings.HasSuffix(inner, "}") && !strings.Contains(inner, "{") {
		return strings.TrimSuffix(inner, "}")
	}
	return rest
}

// ours reports whether key belongs to a lock, or to a client, and is none itself.
func ours(key string) bool {
	return strings.HasPrefix(key, "relock_line_entries:") || strings.HasPrefix(key, keys.OfClient(""))
}

// glob returns a pattern of SCAN as one of Go.
func glob(pattern string) (*regexp.Regexp, error) {
	var b strings.Builder
	b.WriteString(`(?s)\A`)
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '*':
			b.WriteString(".*")
		case c == '?':
			b.WriteString(".")
		case c == '\\' && i+1 < len(pattern):
			i++
			b.WriteString(regexp.QuoteMeta(pattern[i : i+1]))
		case c == '[' && strings.Contains(pattern[i:], "]"):
			end := i + strings.IndexByte(pattern[i:], ']')
			b.WriteString(pattern[i : end+1])
			i = end
		default:
			b.WriteString(regexp.QuoteMeta(pattern[i : i+1]))
		}
	}
	like, err := regexp.Compile(b.String() + `\z`)
	if err != nil {
		return nil, fmt.Errorf("%w: %q", ErrPattern, pattern)
	}
	return like, nil
}

// answers is what the nodes of a target said, in their order.
type answers struct {
	locks []map[string]*Lock
	errs  []error
}

// gather asks all nodes at once. It fails if the only one does, or all.
func gather(t *target.Target, ask func(*target.Node) (map[string]*Lock, error)) (*answers, error) {
	a := &answers{make([]map[string]*Lock, len(t.Nodes)), make([]error, len(t.Nodes))}
	var all sync.WaitGroup
	for i, n := range t.Nodes {
		all.Go(func() {
			if a.locks[i], a.errs[i] = ask(n); a.errs[i] != nil {
				a.errs[i] = fmt.Errorf("%s: %w", n.Name, a.errs[i])
			}
		})
	}
	all.Wait()
	if !slices.Contains(a.errs, nil) {
		return nil, a.errs[0]
	}
	return a, nil
}

// minority is an error if too few nodes have answered.
func (a *answers) minority(t *target.Target) error {
	failed := slices.DeleteFunc(slices.Clone(a.errs), func(err error) bool { return err == nil })
	if answers := len(a.errs) - len(failed); answers < t.Majority() {
		return &Minority{answers, len(a.errs), t.Majority(), failed[0]}
	}
	return nil
}

// names are all names of any node.
func (a *answers) names() []string {
	all := make(map[string]bool)
	for _, locks := range a.locks {
		for name := range locks {
			all[name] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// of is what is known of name.
func (a *answers) of(t *target.Target, name string) *Lock {
	if !t.Quorum() {
		return a.locks[0][name]
	}
	nodes := make([]Lock, len(t.Nodes))
	for i, n := range t.Nodes {
		l := a.locks[i][name]
		if l == nil {
			l = &Lock{Name: name, Kind: Free, Holders: []Holder{}, Waiters: []Waiter{}}
		}
		nodes[i] = *l
		nodes[i].Node = n.Name
		if a.errs[i] != nil {
			nodes[i].Error = a.errs[i].Error()
		}
	}
	return Together(name, nodes, t.Majority())
}
