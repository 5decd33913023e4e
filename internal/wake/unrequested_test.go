package wake_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// What a server sends without a request for it: it has ended a subscription, or go-redis has reconnected.

func TestConnection_UnrequestedAnswerReplacesIt(t *testing.T) {
	t.Parallel()
	const refused = "-NOPERM No permissions to access a channel\r\n"
	for name, test := range map[string]struct {
		answer  string
		pinging bool
	}{
		"an unsubscription":                      {answer: ">3\r\n$11\r\nunsubscribe\r\n$9\r\nchannel:1\r\n:0\r\n"},
		"a confirmation of a live channel":       {answer: ">3\r\n$9\r\nsubscribe\r\n$9\r\nchannel:1\r\n:1\r\n"},
		"a confirmation of a refused channel":    {answer: ">3\r\n$9\r\nsubscribe\r\n$11\r\nforbidden:1\r\n:1\r\n"},
		"a confirmation of no channel":           {answer: ">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n"},
		"a refusal of channels":                  {answer: refused},
		"a refusal of channels, not of the PING": {answer: refused, pinging: true},
		"the same of an older server":            {answer: "-NOPERM this user has no permissions to access one of the channels used as arguments\r\n", pinging: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.NewServer(t)
			admin, relay := s.Client(t), redistest.NewRelay(t, s.Addr)
			opt := restricted(t, s, admin).Options()
			p := startProxy(t, relay.Addr)
			cfg := config()
			cfg.PingInterval, cfg.PongTimeout = time.Hour, time.Minute
			h := newHub(t, newClient(t, &redis.Options{Addr: p.Addr().String(), Username: opt.Username, Password: opt.Password}), cfg)
			w := subscribeLive(t, h, "channel:1")
			bad := subscribe(h, "forbidden:1")
			bad.waitWoken(t, 0)
			if test.pinging {
				ping := relay.HoldBackSilently(redistest.Named("PING"))
				h.Suspect("channel:1")
				ping.Wait(t)
			}
			p.inject(t, test.answer)
			requireRecovered(t, w, 1, admin, "channel:1")
			require.False(t, bad.Live())
		})
	}
}

// Otherwise the refusal of one channel would be taken for that of another.
func TestShards_UnrequestedUnsubscriptionDuringARequestReplacesTheConnection(t *testing.T) {
	t.Parallel()
	s := redistest.NewServer(t)
	relay := redistest.NewRelay(t, s.Addr)
	p := startProxy(t, relay.Addr)
	cfg := config()
	cfg.PingInterval, cfg.PongTimeout, cfg.AnswerTimeout = time.Hour, time.Minute, time.Minute
	shards, _ := newShards(t, newClient(t, &redis.Options{Addr: p.Addr().String()}), cfg)
	w := subscribeLive(t, shards, "a")
	request := relay.HoldBackSilently(redistest.Named("SSUBSCRIBE").And(redistest.With("b")))
	subscribe(shards, "b")
	request.Wait(t)
	p.inject(t, ">3\r\n$12\r\nsunsubscribe\r\n$1\r\nb\r\n:1\r\n")
	requireShardRecovered(t, w, s.Client(t), "a")
}
