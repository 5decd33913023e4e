package redistest

import (
	"testing"

	"github.com/redis/go-redis/v9"
)

// RefusedByACL matches what a command of a script fails with that its user may not run: before
// Redis 7.2, and since.
const RefusedByACL = "can't run this command|ACL failure in script: .* no permissions to run"

// User returns a client of s as a user who may do what these ACL rules say, and nothing else.
func (s *Server) User(tb testing.TB, rules ...string) *redis.Client {
	tb.Helper()
	line := []any{"acl", "setuser", "app", "on", ">secret", "resetchannels", "-@all"}
	for _, rule := range rules {
		line = append(line, rule)
	}
	must(tb, s.Client(tb).Do(tb.Context(), line...).Err())
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr, Username: "app", Password: "secret"})
	tb.Cleanup(func() { rdb.Close() })
	return rdb
}
