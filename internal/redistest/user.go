package redistest

import (
	"testing"

	"github.com/redis/go-redis/v9"
)

// RefusedByACL matches the error of a command in a script that the user may not run, before Redis 7.2 and since.
const RefusedByACL = "can't run this command|ACL failure in script: .* no permissions to run"

// User returns a client of s for a user with exactly these ACL rules.
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
