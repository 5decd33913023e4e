package target

import (
	"crypto/tls"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func open(t *testing.T, text string) *Node {
	t.Helper()
	n, err := openNode(text, Settings{})
	require.NoError(t, err)
	t.Cleanup(func() { n.Redis.Close() })
	return n
}

func TestURL_LeadsToOneServer(t *testing.T) {
	for text, name := range map[string]string{
		"redis://host":                   "host:6379",
		"host":                           "host:6379",
		"10.0.0.1:7000":                  "10.0.0.1:7000",
		"redis://u:p%2F@host:1/3":        "host:1",
		"rediss://[::1]:7000":            "[::1]:7000",
		"unix:///var/run/redis.sock":     "/var/run/redis.sock",
		"redis://host?read_timeout=2s":   "host:6379",
		"redis://:p%40ss@host:6380?db=2": "host:6380",
	} {
		n := open(t, text)
		require.Equal(t, Server, n.Kind, text)
		require.Equal(t, name, n.Name, text)
	}
	opts := open(t, "redis://u:p%2F@host:1/3").Redis.(*redis.Client).Options()
	require.Equal(t, []any{"u", "p/", 3}, []any{opts.Username, opts.Password, opts.DB})
}

func TestURL_LeadsToAClusterByAllItsHosts(t *testing.T) {
	n := open(t, "rediss-cluster://u:p@a:1,b,[::1]:3?read_timeout=2s")
	opts := n.Redis.(*redis.ClusterClient).Options()
	require.Equal(t, []string{"a:1", "b:6379", "[::1]:3"}, opts.Addrs)
	require.Equal(t, "p", opts.Password)
	require.NotNil(t, opts.TLSConfig)
	require.Equal(t, Cluster, n.Kind)
}

func TestURL_LeadsToTheMasterBehindSentinels(t *testing.T) {
	n := open(t, "redis-sentinel://u:p@a,b:2/main/4?sentinel_username=s&sentinel_password=t")
	require.Equal(t, "main by a:26379,b:2", n.Name)
	opts := n.Redis.(*redis.Client).Options()
	require.Equal(t, []any{"u", "p", 4}, []any{opts.Username, opts.Password, opts.DB})
}

func TestURL_WithTLSMayTrustAnyServer(t *testing.T) {
	for _, text := range []string{"rediss://a", "rediss-cluster://a,b", "rediss-sentinel://a,b/main"} {
		for query, trusting := range map[string]bool{"": false, "?skip_verify=false": false, "?skip_verify=true": true, "?skip_verify=1&read_timeout=2s": true} {
			var config *tls.Config
			switch rdb := open(t, text+query).Redis.(type) {
			case *redis.Client:
				config = rdb.Options().TLSConfig
			case *redis.ClusterClient:
				config = rdb.Options().TLSConfig
			}
			require.NotNil(t, config, text+query)
			require.Equal(t, trusting, config.InsecureSkipVerify, text+query)
			require.Equal(t, "a", config.ServerName, "the first host, for all servers: %s", text+query)
		}
		for _, bad := range []string{text + "?skip_verify=yes", strings.Replace(text, "rediss", "redis", 1) + "?skip_verify=true"} {
			_, err := openNode(bad, Settings{})
			require.ErrorContains(t, err, "skip_verify", bad)
		}
	}
}

func TestURL_BadOneIsRefusedWithoutItsPassword(t *testing.T) {
	for _, text := range []string{
		"http://u:s3cret@host", "redis://u:s3cret@", "redis://u:s3cret@h:port", "redis://u:s3cret@a,b", "redis://u:s3cret/@host",
		"redis://u:?s3cret@host", "redis://u:s3cret%@host", "redis://u:s3@cret@host:x", "redis://u:s3cret@host/x",
		"redis-cluster://u:s3cret@a/2", "redis-sentinel://u:s3cret@a", "redis-sentinel://a/m?sentinel_password=s3cret&x=1",
		"redis://u:s3cret@host?nonsense=1", "u:s3cret@host:x", "redis-other://u:s3cret@h", "redis://u:s3 cret@host",
	} {
		_, err := openNode(text, Settings{})
		require.Error(t, err, text)
		for _, part := range []string{"s3cret", "s3", "cret"} {
			require.False(t, strings.Contains(err.Error(), part), "%s: %v", text, err)
		}
	}
}

func TestURL_NodeHasOneVote(t *testing.T) {
	_, err := Open([]string{"redis://a", "redis://b", "a:6379"}, Settings{})
	require.ErrorContains(t, err, "a:6379 is given twice")
}
