// Package hint says what can be done about an error of Redis, the network, or TLS.
package hint

import "strings"

// hints are what can be done about an error that has one of these words in it. The first that fits counts: the words
// of Redis stand before those of the network, and silence, which says least, is the last.
var hints = []struct{ words, hint string }{
	{"cluster support disabled", "this server is not in a Cluster: use redis:// or rediss://"},
	{"MOVED ", "this server is a node of a Cluster: use redis-cluster:// or rediss-cluster://"},
	{"READONLY ", "this server is a replica: give the address of the master, or of its Sentinels"},
	{"NOREPLICAS", "it has too few replicas that follow it, and so refuses writes: see min-replicas-to-write"},
	{"MISCONF", "it cannot save to its disk, and so refuses writes: look at its log"},
	{"OOM ", "it is out of memory, and refuses new locks: raise maxmemory, or remove keys"},
	{"LOADING", "it loads its data: wait until it has"},
	{"CLUSTERDOWN", "its Cluster does not serve all slots: see redis-cli --cluster check"},
	{"NOAUTH", passwordHint},
	{"unauthenticated", passwordHint},
	{"WRONGPASS", "the user or the password is wrong; in a URL a password is %-encoded"},
	{"NOPERM", permissionHint},
	{"ACL failure", permissionHint},
	{"can't run this command", permissionHint},
	{"DENIED", "it is in protected mode: set a password, or bind it to an address that others do not reach"},
	{"sentinels specified in configuration are unreachable: redis: nil", "its Sentinels do not know a master of that name: see SENTINEL MASTERS"},
	{"unknown command `sentinel`", noSentinelHint}, // before Redis 7
	{"unknown command 'sentinel'", noSentinelHint},
	{"unknown command", sentinelHint},
	{"accepted by Sentinel", sentinelHint},
	{"x509:", "its certificate is not trusted: --cacert names the file of the authority; see relock help urls"},
	{"certificate required", clientHint},
	{"bad certificate", clientHint},
	{"unknown certificate", clientHint}, // also of its authority
	{"handshake failure", clientHint},
	{"does not look like a TLS handshake", "it has no TLS on that port: use redis:// in place of rediss://"},
	{"connection refused", reachHint},
	{"no such host", reachHint},
	{"EOF", closedHint},
	{"connection reset", closedHint},
	{"no answer from Redis", reachHint},
	{"timeout", reachHint},
}

const (
	passwordHint   = "it wants a password: redis://USER:PASSWORD@HOST"
	permissionHint = "this user may not do that: relock doctor --name NAME says what it may not"
	noSentinelHint = "it is not a Sentinel: use redis:// for a server"
	clientHint     = "it refuses this client's certificate, or wants one: see --cert and --key"
	sentinelHint   = "it does not have locks: if it is a Sentinel, use redis-sentinel://HOST/MASTER"
	reachHint      = "see that Redis runs there, with TLS if the URL begins with rediss, and that --redis or RELOCK_REDIS names it"
	// A server that refuses a certificate may have closed the connection before its reason is read.
	closedHint = "it closed the connection: if it wants TLS, use rediss:// in place of redis://; if it wants a certificate, see --cert and --key"
)

// For returns what can be done about err; "" if that is not known.
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
