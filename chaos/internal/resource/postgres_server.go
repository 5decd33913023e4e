package resource

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// errNoPostgres reports why no PostgreSQL can be started on this machine.
var errNoPostgres = errors.New("no PostgreSQL")

// startTimeout bounds how long PostgreSQL may take to come up.
const startTimeout = 30 * time.Second

// startPostgres starts a PostgreSQL of its own in a new directory. It listens on a Unix
// socket in there and nowhere else.
func startPostgres(ctx context.Context) (*Server, error) {
	initdb, postgres := program("initdb"), program("postgres")
	if initdb == "" || postgres == "" {
		return nil, fmt.Errorf("%w: initdb and postgres are not installed", errNoPostgres)
	}
	as, err := unprivileged()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoPostgres, err)
	}
	dir, err := os.MkdirTemp("", "relock-pg-")
	if err != nil {
		return nil, err
	}
	s, err := as.start(ctx, dir, initdb, postgres)
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return s, nil
}

// program finds a program of PostgreSQL: some systems keep them off the PATH.
func program(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name) // the pattern is well-formed
	slices.Sort(found)
	if len(found) == 0 {
		return ""
	}
	return found[len(found)-1]
}

func (u user) start(ctx context.Context, dir, initdb, postgres string) (*Server, error) {
	if err := u.own(dir); err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	create := exec.CommandContext(ctx, initdb, "-D", data, "-U", "chaos", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
	create.Dir = dir
	u.be(create)
	if out, err := create.CombinedOutput(); errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("%w: its user cannot get at %s: %w", errNoPostgres, dir, err)
	} else if err != nil {
		return nil, fmt.Errorf("initdb: %w: %s", err, bytes.TrimSpace(out))
	}
	serve := exec.Command(postgres, "-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=200")
	serve.Dir = dir
	u.be(serve)
	stop, err := run(serve)
	if err != nil {
		return nil, err
	}
	where := url.URL{Scheme: "postgres", User: url.User("chaos"), Path: "/postgres", RawQuery: url.Values{"host": {dir}}.Encode()}
	s := &Server{Name: "PostgreSQL", URL: where.String(), stop: func() {
		stop()
		_ = os.RemoveAll(dir)
	}}
	if err := prepare(ctx, s.URL); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// prepare waits until the server answers, and makes the table.
func prepare(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, url)
		if err == nil {
			_, err = conn.Exec(ctx, createTable)
			return errors.Join(err, conn.Close(ctx))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("PostgreSQL does not answer: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
