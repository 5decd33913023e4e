//go:build unix

package main_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Redis asks for certificates of clients by default.
func TestTLS_AServerThatWantsACertificateGetsOne(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	other, otherKey := certificate(t)
	port := freePort(t)
	server(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert)
	url := "rediss://127.0.0.1:" + port
	flags := []string{"--cert", cert, "--key", key, "--cacert", cert}
	for _, args := range [][]string{{"run", "a", "--", "echo", "ran"}, {"ls"}, {"doctor"}} {
		code, _, stderr := run(t, url, append(args[:1:1], append(flags, args[1:]...)...)...)
		require.Equal(t, 0, code, "%v: %s", args, stderr)
	}
	byVariables := command(t, url, "run", "a", "--", "sh", "-c", "echo ran")
	byVariables.Env = append(byVariables.Env, "RELOCK_CERT="+cert, "RELOCK_KEY="+key, "RELOCK_CACERT="+cert)
	p := startCommand(t, byVariables)
	require.Equal(t, 0, p.wait(t))
	require.Equal(t, "ran\n", p.out.String())

	const wants, distrusts = "see --cert and --key", "certificate is not trusted"
	for _, c := range []struct {
		hint string
		args []string
	}{
		{wants, []string{"--cacert", cert}},
		{wants, []string{"--cacert", cert, "--cert", other, "--key", otherKey}},
		{distrusts, []string{"--cert", cert, "--key", key, "--cacert", other}},
	} {
		code, out, stderr := run(t, url, append([]string{"run", "--ttl", "1s", "a"}, append(c.args, "--", "echo", "ran")...)...)
		require.Equal(t, 69, code, "%v: %s", c.args, stderr)
		require.Contains(t, stderr, c.hint, "%v", c.args)
		require.Empty(t, out)
	}
}

func TestTLS_HintFitsWhatIsWrongWithTheServersCertificate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, host string
		end        time.Duration
		hint       string
	}{
		{"expired", "127.0.0.1", -time.Hour, "renew the server's certificate"},
		{"not yet valid", "127.0.0.1", 3 * time.Hour, "set the clock of this machine"},
		{"of another host", "localhost", time.Hour, "use the host name that the certificate has"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cert, key := certificateUntil(t, time.Now().Add(c.end))
			port := freePort(t)
			server(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "no")
			code, _, stderr := run(t, "rediss://"+c.host+":"+port, "state", "--cacert", cert, "a")
			require.Equal(t, 69, code, stderr)
			require.Contains(t, stderr, c.hint)
			require.NotContains(t, stderr, "is not trusted")
		})
	}
}

func TestTLS_FilesThatCannotBeUsedAreAWrongCall(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	_, otherKey := certificate(t)
	empty := inDir(t, "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	const url = "rediss://127.0.0.1:1"
	for _, c := range []struct {
		url, says string
		args      []string
	}{
		{url, "go together", []string{"--cert", cert}},
		{url, "go together", []string{"--key", key}},
		{url, "private key does not match", []string{"--cert", cert, "--key", otherKey}},
		{url, "no such file", []string{"--cert", cert, "--key", "/no/such"}},
		{url, "no such file", []string{"--cacert", "/no/such"}},
		{url, empty + " contains no CA certificate", []string{"--cacert", empty}},
		{"redis://127.0.0.1:1", "no URL begins with rediss", []string{"--cacert", cert}},
		{"127.0.0.1:1", "no URL begins with rediss", []string{"--cert", cert, "--key", key}},
	} {
		code, out, stderr := run(t, c.url, append([]string{"state", "a"}, c.args...)...)
		require.Equal(t, 64, code, "%v: %s", c.args, stderr)
		require.Contains(t, stderr, c.says, "%v", c.args)
		require.Empty(t, out)
	}
}
