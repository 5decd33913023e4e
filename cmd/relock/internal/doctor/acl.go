package doctor

import (
	"context"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/cmd/relock/internal/look"
	"github.com/relock-go/relock/cmd/relock/internal/target"
	"github.com/relock-go/relock/internal/keys"
)

// need is what a kind of lock does on Redis.
type need struct {
	what     string
	without  Status
	onQuorum bool // a quorum has this kind
	commands [][]string
}

// needs are the needs of all kinds: K is the lock, C its counter, L and E its line, M and N the line of a semaphore, Q
// Java's queue, R a reader's level, W a claim, I what a client says of itself; P, G and X are the channels of a plain
// lock, of grants, and of a read-write lock.
var needs = []need{
	{"Mutex, MultiMutex", Broken, true, commands(`
		evalsha 0000000000000000000000000000000000000000 1 K; eval x 1 K; hlen K; hexists K f; hgetall K; hset K f 1; hdel K f; pttl K; pexpire K 1; time;
		get C; set C 1 px 1; pttl C; lindex Q 0; publish P 0; subscribe P; unsubscribe P; ping`)},
	{"FairMutex, and the line of all waiters", Warning, false, commands(`
		zadd L 1 f; zcard L; zrange L 0 0; zrem L f; zrevrange L 0 0; zscore L f; pttl L; pexpire L 1; exists L;
		hlen E; hget E f; hset E f 1; hdel E f; pttl E; pexpire E 1; publish G 0; subscribe G; pubsub numsub G`)},
	{"Semaphore", Warning, false, commands(`
		zadd K xx gt 1 f; zcard K; zrange K 0 0 withscores; zrem K f; zscore K f; pttl K; pexpire K 1;
		zadd M 1 f; zcard M; zrange M 0 0; zrem M f; zrevrange M 0 0; zscore M f; pttl M; pexpire M 1; exists M;
		hlen N; hexists N f; hget N f; hset N f 1; hdel N f; pttl N; pexpire N 1; publish G 0; subscribe G; pubsub numsub G`)},
	{"WithClientInfo, as relock run does", Warning, true, commands(`hset I host x; pexpire I 1; hdel I host`)},
	{"RWMutex", Warning, false, commands(`
		hget K mode; exists K; del K; hmget K f; hkeys K; hrandfield K 3 withvalues; set R 1; pttl R; pexpire R 1; del R;
		get W; set W 1 px 1; del W; exists W; publish X 0; subscribe X`)},
}

func commands(text string) (all [][]string) {
	for _, command := range strings.Split(text, ";") {
		all = append(all, strings.Fields(command))
	}
	return all
}

// permissions asks what the user may do, without doing it.
func (e *Exam) permissions(ctx context.Context, n *target.Node) {
	names, err := look.NamesOf(e.Name)
	if err != nil {
		e.note(Broken, "permissions", "", "%v", err)
		return
	}
	stands := map[string]string{
		"K": names.Keys[0], "C": names.Keys[1], "L": names.Keys[2], "E": names.Keys[3], "Q": names.Keys[4], "W": names.Keys[5],
		"M": names.Keys[6], "N": names.Keys[7],
		"R": names.Timeouts + ":uuid:1:rwlock_timeout:1", "P": names.Channel, "G": names.Grants + "uuid", "X": names.RW,
		"I": keys.OfClient("uuid"),
	}
	err = n.EachMaster(ctx, func(ctx context.Context, rdb *redis.Client) error {
		for _, need := range needs {
			if e.Target.Quorum() && !need.onQuorum {
				continue
			}
			refused, err := e.refused(ctx, rdb, need, stands)
			if err != nil {
				return err
			}
			if len(refused) > 0 {
				e.note(need.without, "permissions", "docs/operations.md#permissions has the rules of an ACL", "%s cannot use %s: %s", e.User, need.what, strings.Join(refused, ", "))
				continue
			}
			e.note(Fine, "permissions", "", "%s can use %s", e.User, need.what)
		}
		return nil
	})
	if err != nil {
		e.note(Warning, "permissions", "connect as a user with +acl|dryrun, on Redis 7 or later", "cannot be checked: %v", err)
	}
}

// refused returns what of a need the user may not do.
func (e *Exam) refused(ctx context.Context, rdb *redis.Client, n need, stands map[string]string) (refused []string, err error) {
	for _, command := range n.commands {
		words := []any{"acl", "dryrun", e.User}
		for _, word := range command {
			if key, stood := stands[word]; stood {
				words = append(words, key)
			} else {
				words = append(words, word)
			}
		}
		answer, err := rdb.Do(ctx, words...).Text()
		if err != nil {
			return nil, err
		}
		if what := command[0] + " (" + answer + ")"; answer != "OK" && !slices.Contains(refused, what) {
			refused = append(refused, what)
		}
	}
	return refused, nil
}
