package target

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Settings are what URLs do not say of connections.
type Settings struct {
	Cert, Key, CA string        // files, for TLS; "": no certificate of this client, the system's authorities
	Timeout       time.Duration // for each answer, for those who look; 0: as locks need it

	certificates []tls.Certificate
	authorities  *x509.CertPool
}

// load reads the files. One of the URLs has to have a use for them.
func (s *Settings) load(urls []string) error {
	switch {
	case s.Cert == "" && s.Key == "" && s.CA == "":
		return nil
	case (s.Cert == "") != (s.Key == ""):
		return errors.New("--cert and --key (RELOCK_CERT and RELOCK_KEY) go together: a certificate and its key")
	case !slices.ContainsFunc(urls, func(url string) bool { return strings.HasPrefix(url, "rediss") }):
		return errors.New("--cert, --key and --cacert (RELOCK_CERT, RELOCK_KEY, RELOCK_CACERT) are for TLS, but no URL begins with rediss")
	}
	if s.Cert != "" {
		pair, err := tls.LoadX509KeyPair(s.Cert, s.Key)
		if err != nil {
			return fmt.Errorf("the certificate %s and its key %s: %w", s.Cert, s.Key, err)
		}
		s.certificates = []tls.Certificate{pair}
	}
	if s.CA != "" {
		text, err := os.ReadFile(s.CA)
		if err != nil {
			return fmt.Errorf("the CA certificates: %w", err)
		}
		s.authorities = x509.NewCertPool()
		if !s.authorities.AppendCertsFromPEM(text) {
			return fmt.Errorf("%s contains no CA certificate", s.CA)
		}
	}
	return nil
}

// use puts the certificates into the configuration of a client; nil: it is one without TLS.
func (s *Settings) use(config *tls.Config) {
	if config != nil {
		config.Certificates, config.RootCAs = s.certificates, s.authorities
	}
}

// limit is a hook that gives each command, or pipeline, so long, with all its tries. It is for those who look: go-redis'
// own time-outs are for one step of one try.
type limit time.Duration

func (l limit) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l limit) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		ctx, cancel := context.WithTimeout(ctx, time.Duration(l))
		defer cancel()
		return l.explain(ctx, next(ctx, cmd))
	}
}

func (l limit) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		ctx, cancel := context.WithTimeout(ctx, time.Duration(l))
		defer cancel()
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			if cmd.Err() != nil {
				cmd.SetErr(l.explain(ctx, cmd.Err()))
			}
		}
		return l.explain(ctx, err)
	}
}

// explain says that err is a silence, if it is one.
func (l limit) explain(ctx context.Context, err error) error {
	var redisSaid redis.Error
	if err == nil || ctx.Err() == nil || errors.As(err, &redisSaid) || errors.As(err, new(silence)) {
		return err
	}
	return silence{time.Duration(l), err}
}

// silence is an answer that did not come.
type silence struct {
	time.Duration
	error
}

func (s silence) Error() string {
	text := fmt.Sprintf("no answer from Redis within %v", s.Duration)
	if errors.Is(s.error, context.DeadlineExceeded) || errors.Is(s.error, os.ErrDeadlineExceeded) { // that is no news
		return text
	}
	return text + ": " + s.error.Error()
}

func (s silence) Unwrap() error { return s.error }
