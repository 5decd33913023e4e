package target

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Syntax says which URLs there are, in the words of --help.
const Syntax = `    redis://[USER:PASSWORD@]HOST[:PORT][/DB]                    one server
    redis-cluster://[USER:PASSWORD@]HOST[:PORT][,HOST...]       a Cluster, by some of its nodes
    redis-sentinel://[USER:PASSWORD@]HOST[:PORT][,HOST...]/MASTER[/DB]
                                                                a server behind Sentinels; theirs are
                                                                ?sentinel_username= and ?sentinel_password=
    unix://[USER:PASSWORD@]/PATH/TO/SOCKET[?db=DB]              one server, by a socket
    HOST[:PORT]                                                 as redis://HOST:PORT

With TLS they begin with rediss: rediss://, rediss-cluster://, rediss-sentinel://. Unless Redis has tls-auth-clients no,
it asks for a certificate of the client: --cert and --key, or RELOCK_CERT and RELOCK_KEY, are the files of the certificate
and its key. --cacert or RELOCK_CACERT is the file of the authorities that may have signed the certificate of the server.
By default these are the authorities of the system, or of SSL_CERT_FILE. ?skip_verify=true trusts any server. All files
are in PEM format. The certificate of each server has to be valid for the first HOST of the URL: of each node of a
Cluster, of each Sentinel, and of the master behind them.

Time-outs are ?dial_timeout=, ?read_timeout= and ?write_timeout=, as 2s. A password is %-encoded, as everywhere in URLs.`

const defaultPort, defaultSentinelPort = "6379", "26379"

// parts are the parts of a URL with one host or several.
type parts struct {
	kind   Kind
	scheme string // redis or rediss, as go-redis expects it
	user   string // with the password, and as it stands there
	hosts  []string
	path   string
	query  url.Values
}

// openNode returns the node that a URL leads to.
func openNode(text string, s Settings) (*Node, error) {
	n, err := parseNode(text, s)
	if err != nil {
		return nil, fmt.Errorf("the Redis URL %s: %w", hidden(text), withoutURL(err))
	}
	n.timeout = s.Timeout
	return n, nil
}

func parseNode(text string, s Settings) (*Node, error) {
	if !strings.Contains(text, "://") {
		text = "redis://" + text
	}
	if strings.HasPrefix(text, "unix://") {
		opts, err := redis.ParseURL(text)
		if err != nil {
			return nil, err
		}
		return newServer(opts, s), nil
	}
	p, err := split(text)
	if err != nil {
		return nil, err
	}
	switch p.kind {
	case Cluster:
		return p.cluster(s)
	case Sentinel:
		return p.sentinel(s)
	default:
		return p.server(s)
	}
}

// split takes a URL apart, because url.Parse does not support several hosts.
func split(text string) (p parts, err error) {
	scheme, rest, _ := strings.Cut(text, "://")
	family, kind, _ := strings.Cut(scheme, "-")
	p.scheme, p.kind = family, Kind(kind)
	if kind == "" {
		p.kind = Server
	}
	known := p.kind == Server && kind == "" || p.kind == Cluster || p.kind == Sentinel
	if (family != "redis" && family != "rediss") || !known {
		return p, fmt.Errorf("unknown URL scheme %q: see relock help urls", scheme)
	}
	if i := strings.LastIndex(rest, "@"); i >= 0 {
		p.user, rest = rest[:i+1], rest[i+1:]
	}
	if strings.ContainsAny(p.user, "/?#") {
		return p, errors.New("the user name or password contains / ? or #: write %2F, %3F, %23")
	}
	authority, query, _ := strings.Cut(rest, "?")
	if p.query, err = url.ParseQuery(query); err != nil {
		return p, errors.New("invalid parameters after the ?")
	}
	hosts, path, _ := strings.Cut(authority, "/")
	p.path = path
	port := defaultPort
	if p.kind == Sentinel {
		port = defaultSentinelPort
	}
	for _, host := range strings.Split(hosts, ",") {
		if host, err = withPort(host, port); err != nil {
			return p, err
		}
		p.hosts = append(p.hosts, host)
	}
	return p, nil
}

// withPort returns host with a port.
func withPort(host, port string) (string, error) {
	u, err := url.Parse("redis://" + host)
	if err != nil || u.Hostname() == "" || u.Host != host {
		return "", errors.New("invalid host or port")
	}
	if u.Port() != "" {
		port = u.Port()
	}
	return net.JoinHostPort(u.Hostname(), port), nil
}

// text is a URL as go-redis reads it: the first host in it, the others as parameters.
func (p parts) text(user, path string) string {
	q := p.query
	for _, host := range p.hosts[1:] {
		q.Add("addr", host)
	}
	return p.scheme + "://" + user + p.hosts[0] + path + "?" + q.Encode()
}

// retries is how often go-redis sends a command again. Locks do that by themselves; who looks at them is
// not to wait for long.
func (p parts) retries(given int) int {
	if p.query.Has("max_retries") {
		return given
	}
	return 1
}

func (p parts) server(s Settings) (*Node, error) {
	if len(p.hosts) > 1 {
		return nil, errors.New("several hosts: use redis-cluster:// or redis-sentinel://, or repeat --redis for a quorum")
	}
	opts, err := redis.ParseURL(p.text(p.user, "/"+p.path))
	if err != nil {
		return nil, err
	}
	opts.DisableIdentity, opts.MaxRetries = true, p.retries(opts.MaxRetries)
	return newServer(opts, s), nil
}

func newServer(opts *redis.Options, s Settings) *Node {
	s.use(opts.TLSConfig)
	opts.ContextTimeoutEnabled = s.Timeout > 0
	return &Node{Name: opts.Addr, Kind: Server, Redis: limited(redis.NewClient(opts), s)}
}

// limited returns rdb with the time-out of s.
func limited(rdb *redis.Client, s Settings) *redis.Client {
	if s.Timeout > 0 {
		rdb.AddHook(limit(s.Timeout))
	}
	return rdb
}

func (p parts) cluster(s Settings) (*Node, error) {
	if p.path != "" {
		return nil, errors.New("a Cluster has no databases: remove the path")
	}
	trusting, err := p.takeSkipVerify()
	if err != nil {
		return nil, err
	}
	opts, err := redis.ParseClusterURL(p.text(p.user, ""))
	if err != nil {
		return nil, err
	}
	if trusting {
		opts.TLSConfig.InsecureSkipVerify = true
	}
	opts.DisableIdentity, opts.MaxRetries = true, p.retries(opts.MaxRetries)
	s.use(opts.TLSConfig)
	opts.ContextTimeoutEnabled = s.Timeout > 0
	rdb := redis.NewClusterClient(opts)
	if s.Timeout > 0 {
		rdb.AddHook(limit(s.Timeout))
		rdb.OnNewNode(func(node *redis.Client) { limited(node, s) })
	}
	return &Node{Name: strings.Join(p.hosts, ","), Kind: Cluster, Redis: rdb}, nil
}

// takeSkipVerify removes ?skip_verify= from the parameters of a URL with TLS, because ParseClusterURL does not support it, and
// returns its value as ParseURL reads it.
func (p parts) takeSkipVerify() (bool, error) {
	if p.scheme != "rediss" || !p.query.Has("skip_verify") {
		return false, nil
	}
	opts, err := redis.ParseURL("rediss://host?" + url.Values{"skip_verify": p.query["skip_verify"]}.Encode())
	if err != nil {
		return false, err
	}
	p.query.Del("skip_verify")
	return opts.TLSConfig.InsecureSkipVerify, nil
}

func (p parts) sentinel(s Settings) (*Node, error) {
	master, db, _ := strings.Cut(p.path, "/")
	if master == "" {
		return nil, errors.New("the name of the master is missing, as in redis-sentinel://host:26379/mymaster")
	}
	user := url.UserPassword(p.query.Get("sentinel_username"), p.query.Get("sentinel_password")).String() + "@"
	p.query.Del("sentinel_username")
	p.query.Del("sentinel_password")
	p.query.Set("master_name", master)
	if user == ":@" {
		user = ""
	}
	opts, err := redis.ParseFailoverURL(p.text(user, "/"+db))
	if err != nil {
		return nil, err
	}
	own, err := redis.ParseURL("redis://" + p.user + "host")
	if err != nil {
		return nil, err
	}
	opts.Username, opts.Password = own.Username, own.Password
	opts.DisableIdentity, opts.MaxRetries = true, p.retries(opts.MaxRetries)
	s.use(opts.TLSConfig)
	opts.ContextTimeoutEnabled = s.Timeout > 0
	return &Node{Name: master + " by " + strings.Join(p.hosts, ","), Kind: Sentinel, Redis: limited(redis.NewFailoverClient(opts), s)}, nil
}

var passwords = regexp.MustCompile(`(password=)[^&]*`)

// hidden returns a URL without what stands before the host, and without passwords.
func hidden(text string) string {
	if i := strings.LastIndex(text, "@"); i >= 0 {
		scheme, _, found := strings.Cut(text[:i], "://")
		if found {
			scheme += "://"
		} else {
			scheme = ""
		}
		text = scheme + "..." + text[i:]
	}
	return passwords.ReplaceAllString(text, "${1}...")
}

// withoutURL returns what an error of url.Parse says, without any part of the URL.
func withoutURL(err error) error {
	var parsing *url.Error
	if errors.As(err, &parsing) {
		return errors.New("invalid URL; is the password %-encoded?")
	}
	return err
}
