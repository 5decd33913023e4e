package redisexec

import (
	"context"
	"errors"
	"net"
	"reflect"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// What becomes of an option of the application's client in a client of our own.
const (
	kept   = "it is the application's"
	ours   = "it is ours"
	unused = "nothing uses it"
)

// fates says of each option what becomes of it. A new one of go-redis' is to be decided on, and added.
var fates = map[string]string{
	"Network": kept, "Addr": kept, "NodeAddress": kept, "ClientName": kept, "Dialer": kept, "OnConnect": kept,
	"Username": kept, "Password": kept, "CredentialsProvider": kept, "CredentialsProviderContext": kept,
	"StreamingCredentialsProvider": kept, "DB": kept, "TLSConfig": kept, "readOnly": kept,
	"DisableIndentity": kept, "DisableIdentity": kept, "IdentitySuffix": kept, "UnstableResp3": kept,
	"DialTimeout": kept, "DialerRetryTimeout": kept, "DialerRetryBackoff": kept, "WriteTimeout": kept,
	"ContextTimeoutEnabled": kept, "ReadBufferSize": kept, "WriteBufferSize": kept,
	"PoolFIFO": kept, "PoolTimeout": kept, "ConnMaxIdleTime": kept, "ConnMaxLifetime": kept, "ConnMaxLifetimeJitter": kept,
	"FailingTimeoutSeconds": kept,

	"MaxRetries": ours, "DialerRetries": ours, "ReadTimeout": ours, "Limiter": ours, // which asks the application's
	"Protocol": ours, "PoolSize": ours, "MaxConcurrentDials": ours,
	"MinIdleConns": ours, "MaxIdleConns": ours, "MaxActiveConns": ours,
	"PushNotificationProcessor": ours, "MaintNotificationsConfig": ours, // of go-redis' own, and off

	"PipelinePoolSize": unused, "PipelineReadBufferSize": unused, "PipelineWriteBufferSize": unused,
	"ClientSideCacheConfig": unused, "ClientSideCache": unused, // without RESP 3
	"MinRetryBackoff": unused, "MaxRetryBackoff": unused, "AutoPipelineOptions": unused,
	"ClientSideCacheStrategy": unused, "ClientSideCacheRefreshOnInvalidate": unused, "ClientSideCacheCoalesceMisses": unused,
	"ClientSideCacheInvalidationBatchWindow": unused,
	"maxConcurrentDialsSet":                  unused, "maxConcurrentDialsInit": unused,
}

func TestOwnOptions_KeepWhatDecidesWhereAConnectionLeads(t *testing.T) {
	for field := range reflect.TypeFor[redis.Options]().Fields() {
		require.Contains(t, fates, field.Name, "what becomes of it?")
	}
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ClientName: "me", DB: 3, DialTimeout: time.Minute, ConnMaxIdleTime: -1, PoolFIFO: true})
	t.Cleanup(func() { _ = rdb.Close() })
	own := redis.NewClient(ownOptions(rdb.Options(), 1, time.Second))
	t.Cleanup(func() { _ = own.Close() })
	for name, fate := range fates {
		was, is := reflect.ValueOf(*rdb.Options()).FieldByName(name), reflect.ValueOf(*own.Options()).FieldByName(name)
		if fate == kept && was.Comparable() {
			require.True(t, was.Equal(is), "%s was %v and is %v", name, was, is)
		}
	}
}

// go-redis changes what it is given: a copy of that would be changed once more.
func TestOwnOptions_KeepTimeoutsThatAreNone(t *testing.T) {
	for _, d := range []time.Duration{-2, -1, time.Minute} {
		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ReadTimeout: d, WriteTimeout: d, MinRetryBackoff: -1})
		x := executorOn(t, rdb)
		own := redis.NewClient(ownOptions(rdb.Options(), 1, x.readTimeout(rdb)))
		for name, o := range map[string]*redis.Options{"own": own.Options(), "clone": x.cloneOf(rdb).Options()} {
			require.Equal(t, rdb.Options().ReadTimeout, o.ReadTimeout, "%s of %v", name, d)
			require.Equal(t, rdb.Options().WriteTimeout, o.WriteTimeout, "%s of %v", name, d)
		}
		require.NoError(t, own.Close())
		require.NoError(t, rdb.Close())
	}
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ReadTimeout: time.Millisecond})
	t.Cleanup(func() { _ = rdb.Close() })
	x := executorOn(t, rdb)
	require.Equal(t, x.longest(), x.readTimeout(rdb), "a connection is not closed before the last copy is given up")
}

// undated is a connection that has no deadlines, as a channel of SSH has none.
type undated struct{ net.Conn }

var errNoDeadlines = errors.New("no deadlines")

func (undated) SetDeadline(time.Time) error      { return errNoDeadlines }
func (undated) SetReadDeadline(time.Time) error  { return errNoDeadlines }
func (undated) SetWriteDeadline(time.Time) error { return errNoDeadlines }

func TestRun_NeedsNoDeadlinesOfAConnection(t *testing.T) {
	t.Parallel()
	master := redistest.NewReplicated(t, 1).Master
	for name, e := range map[string]CallOptions{
		"plainly": {}, "for replicas": CallOptions{Patience: 5 * time.Second}.ConfirmedBy(Replicas{N: 1, Timeout: 5 * time.Second}),
	} {
		for _, unpipelined := range []bool{true, false} {
			eachContext(t, func(t *testing.T, ctx context.Context) {
				rdb := redis.NewClient(&redis.Options{
					Addr: master.Addr, ReadTimeout: -2, WriteTimeout: -2,
					Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
						conn, err := new(net.Dialer).DialContext(ctx, network, addr)
						return undated{conn}, err
					},
				})
				t.Cleanup(func() { _ = rdb.Close() })
				x := executorOn(t, rdb)
				x.Unpipelined = unpipelined
				for n := range 5 {
					e := e
					e.Attempts = 3
					_, out := x.Run(ctx, e, idle, []any{redistest.Key(t)})
					require.NoError(t, out.Err, "%s, %d", name, n)
				}
			})
		}
	}
}
