package hint

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFor_HintFitsWhatIsWrongWithTheServersCertificate(t *testing.T) {
	for _, c := range []struct {
		err  error
		hint string
	}{
		{x509.CertificateInvalidError{Reason: x509.Expired, Detail: "current time 2026-01-02T00:00:00Z is after 2026-01-01T00:00:00Z"}, "renew the server's certificate; if it is valid now, set the clock"},
		{x509.HostnameError{Certificate: &x509.Certificate{DNSNames: []string{"redis.internal"}}, Host: "db1"}, "use the host name that the certificate has"},
		{x509.HostnameError{Certificate: &x509.Certificate{DNSNames: []string{"redis.internal"}}, Host: "10.0.0.1"}, "use the host name that the certificate has"},
		{x509.HostnameError{Certificate: &x509.Certificate{IPAddresses: []net.IP{net.IPv4(10, 0, 0, 2)}}, Host: "10.0.0.1"}, "use the host name that the certificate has"},
		{x509.HostnameError{Certificate: &x509.Certificate{IPAddresses: []net.IP{net.IPv4(10, 0, 0, 2)}}, Host: "db1"}, "use the host name that the certificate has"},
		{x509.HostnameError{Certificate: &x509.Certificate{Subject: pkix.Name{CommonName: "db1"}}, Host: "db1"}, "as a subject alternative name"},
		{x509.UnknownAuthorityError{}, "pass its authority with --cacert"},
	} {
		require.Contains(t, For(fmt.Errorf("tls: failed to verify certificate: %w", c.err)), c.hint, c.err.Error())
	}
}
