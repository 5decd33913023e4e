package relock

import (
	"testing"
	"time"

	"github.com/relock-go/relock/internal/redisexec"
)

// refusal is an error reply.
type refusal string

func (e refusal) Error() string { return string(e) }
func (refusal) RedisError()     {}

// While a password is changed, or a new master has not loaded its users, a holder goes on, and so does a waiter.
func TestAttempt_RidesOutThatRedisDoesNotLetItIn(t *testing.T) {
	for _, reply := range []refusal{"NOAUTH Authentication required.", "WRONGPASS invalid username-password pair", "NOPERM no permissions"} {
		refused := redisexec.Outcome{Err: reply, Permanent: true}
		t.Run(string(reply[:6]), func(t *testing.T) {
			begin(t, func(b *trial) {
				h := b.wants("me", "a")
				ended := h.locks(b.t.Context())
				for range 2 {
					b.taken(h, time.Second)
					time.Sleep(2 * time.Second)
				}
				for range 4 {
					b.fails(h, refused)
					b.goesOn(ended)
					time.Sleep(time.Second)
				}
				b.granted(h)
				b.gets(ended, true)
			})
		})
		t.Run(string(reply[:6])+" at first", func(t *testing.T) {
			begin(t, func(b *trial) {
				h := b.wants("me", "a")
				ended := h.locks(b.t.Context())
				b.fails(h, refused)
				b.gets(ended, false, reply)
			})
		})
	}
}
