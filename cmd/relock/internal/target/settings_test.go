package target

import (
	"crypto/tls"
	"crypto/x509"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestSettings_CertificatesAreForAllKindsOfNodesWithTLS(t *testing.T) {
	s := Settings{certificates: []tls.Certificate{{}}, authorities: x509.NewCertPool()}
	for _, text := range []string{"rediss://a", "rediss-cluster://a,b", "rediss-sentinel://a/m", "redis://a", "redis-cluster://a", "redis-sentinel://a/m"} {
		n, err := openNode(text, s)
		require.NoError(t, err)
		t.Cleanup(func() { n.Redis.Close() })
		var config *tls.Config
		switch rdb := n.Redis.(type) {
		case *redis.Client:
			config = rdb.Options().TLSConfig
		case *redis.ClusterClient:
			config = rdb.Options().TLSConfig
		}
		if text[:6] != "rediss" {
			require.Nil(t, config, text)
			continue
		}
		require.Len(t, config.Certificates, 1, text)
		require.Same(t, s.authorities, config.RootCAs, text)
	}
}
