// Package hint suggests what to do about an error of Redis, the network, or TLS.
package hint

import "strings"

// hints has what to do about an error that contains these words. The first match counts: errors of Redis come before
// network errors, and time-outs, which are the least specific, come last.
var hints = []struct{ words, hint string }{
	{"cluster support disabled", "this server is not in a Cluster: use redis:// or rediss://"},
	{"MOVED ", "this server is a node of a Cluster: use redis-cluster:// or rediss-cluster://"},
	{"READONLY ", "this server is a replica: use the address of the master, or of its Sentinels"},
	{"NOREPLICAS", "the server rejects writes because it has too few replicas: see min-replicas-to-write"},
	{"MISCONF", "the server rejects writes because it cannot save to disk: see its log"},
	{"OOM ", "the server is out of memory and rejects new locks: raise maxmemory, or remove keys"},
	{"LOADING", "the server is loading its data: try again later"},
	{"CLUSTERDOWN", "the Cluster does not serve all slots: see redis-cli --cluster check"},
	{"NOAUTH", passwordHint},
	{"unauthenticated", passwordHint},
	{"WRONGPASS", "the user or the password is wrong; in a URL a password is %-encoded"},
	{"NOPERM", permissionHint},
	{"ACL failure", permissionHint},
	{"can't run this command", permissionHint},
	{"DENIED", "the server is in protected mode: set a password, or bind it to a private address"},
	{"sentinels specified in configuration are unreachable: redis: nil", "the Sentinels have no master of that name: see SENTINEL MASTERS"},
	{"unknown command `sentinel`", noSentinelHint}, // before Redis 7
	{"unknown command 'sentinel'", noSentinelHint},
	{"unknown command", sentinelHint},
	{"accepted by Sentinel", sentinelHint},
	{"certificate has expired or is not yet valid", "renew the server's certificate; if it is valid now, set the clock of this machine"},
	{"certificate is valid for", hostHint},
	{"certificate is not valid for any names", hostHint},
	{"IP SANs", hostHint},
	{"legacy Common Name", "renew the server's certificate with its host name as a subject alternative name (SAN)"},
	{"x509:", "the server's certificate is not trusted: pass its authority with --cacert; see relock help urls"},
	{"certificate required", clientHint},
	{"bad certificate", clientHint},
	{"unknown certificate", clientHint}, // also of its authority
	{"handshake failure", clientHint},
	{"does not look like a TLS handshake", "the server does not use TLS on this port: use redis:// instead of rediss://"},
	{"connection refused", reachHint},
	{"no such host", reachHint},
	{"EOF", closedHint},
	{"connection reset", closedHint},
	{"no answer from Redis", reachHint},
	{"timeout", reachHint},
}

const (
	passwordHint   = "the server requires a password: redis://USER:PASSWORD@HOST"
	permissionHint = "this user lacks a permission: relock doctor --name NAME reports which"
	noSentinelHint = "this server is not a Sentinel: use redis://"
	hostHint       = "the server's certificate is for another host: use the host name that the certificate has, as the first HOST of the URL"
	clientHint     = "the server requires another client certificate: see --cert and --key"
	sentinelHint   = "this server cannot hold locks: if it is a Sentinel, use redis-sentinel://HOST/MASTER"
	reachHint      = "check the address in --redis or RELOCK_REDIS, and that Redis runs there (with TLS for rediss://)"
	// A server that refuses a certificate may have closed the connection before its reason is read.
	closedHint = "the server closed the connection: if it requires TLS, use rediss://; if it requires a certificate, see --cert and --key"
)

// For returns what to do about err, or "" if no hint matches.
func For(err error) string {
	text := err.Error()
	for _, h := range hints {
		if strings.Contains(text, h.words) {
			return h.hint
		}
	}
	return ""
}

// Forbidden reports whether err says that this user has no permission for a command, a key or a channel.
func Forbidden(err error) bool { return For(err) == permissionHint }
