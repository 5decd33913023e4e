// Package resource is a store that locks protect in a run. It refuses a fencing token that is lower than one that it has
// accepted.
package resource

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Resource is a store with one value for each lock. It is safe for concurrent use.
type Resource interface {
	// Write stores value with token, unless a write for the same lock with a higher token was accepted before. After an
	// error the outcome is unknown.
	Write(ctx context.Context, lock string, token int64, value string) (accepted bool, err error)
	Close() error
}

// Open connects to the resource at url: redis://… or postgres://…
func Open(ctx context.Context, url string) (Resource, error) {
	switch {
	case strings.HasPrefix(url, "redis://"):
		return openRedis(url)
	case strings.HasPrefix(url, "postgres://"):
		return openPostgres(ctx, url)
	}
	return nil, fmt.Errorf("no such resource: %q", url)
}

// Server is a store that was started for a run, and dies with this process.
type Server struct {
	Name string // what it is
	URL  string // for Open
	stop func()
}

// Close stops the server.
func (s *Server) Close() { s.stop() }

// Start starts a server of every available kind. A Redis is always among them. without lists the kinds that are not
// available.
func Start(ctx context.Context) (servers []*Server, without error, err error) {
	redis, err := startRedis()
	if err != nil {
		return nil, nil, err
	}
	postgres, err := startPostgres(ctx)
	if errors.Is(err, errNoPostgres) {
		return []*Server{redis}, err, nil
	}
	if err != nil {
		redis.Close()
		return nil, nil, err
	}
	return []*Server{redis, postgres}, nil, nil
}
