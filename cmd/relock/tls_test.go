//go:build unix

package main_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// certificate writes a certificate for 127.0.0.1, signed by itself, and its key to files.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	return certificateUntil(t, time.Now().Add(time.Hour))
}

func certificateUntil(t *testing.T, end time.Time) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	about := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "relock test"},
		NotBefore: end.Add(-2 * time.Hour), NotAfter: end,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	signed, err := x509.CreateCertificate(rand.Reader, about, about, private.Public(), private)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	dir := t.TempDir()
	write := func(name, kind string, bytes []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600))
		return path
	}
	return write("cert.pem", "CERTIFICATE", signed), write("key.pem", "PRIVATE KEY", secret)
}

func TestVerbs_WorkWithTLSIfTheCertificateIsTrusted(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	port := freePort(t)
	server(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "no")
	url := "rediss://127.0.0.1:" + port
	everyVerb(t, url+"?skip_verify=true")
	for _, args := range [][]string{{"run", "--ttl", "1s", "a", "--", "echo", "ran"}, {"ls"}, {"state", "a"}, {"force", "a"}, {"watch", "a"}} {
		code, out, stderr := run(t, url, args...)
		require.Equal(t, 69, code, "%v: %s", args, stderr)
		require.Contains(t, stderr, "certificate is not trusted", "%v", args)
		require.Empty(t, out)
	}
	trusting := command(t, url, "run", "a", "--", "echo", "ran")
	trusting.Env = append(trusting.Env, "SSL_CERT_FILE="+cert)
	out, err := trusting.Output()
	require.NoError(t, err)
	require.Equal(t, "ran\n", string(out))
	code, _, _ := findings(t, url+"?skip_verify=true")
	require.Equal(t, 0, code)
}

// freePort returns a port on which no one listens.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	return port
}

func TestVerbs_WorkByASocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "redis.sock")
	server(t, "--unixsocket", path)
	everyVerb(t, "unix://"+path)
}
