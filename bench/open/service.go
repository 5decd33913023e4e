package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/relock-go/relock/internal/redistest"
)

// service is a server that is locked on, in a temporary directory, on a free port of the loopback.
type service struct {
	kind    string
	addr    string
	version string
	root    int // the process of the server, and all below it
	close   func()

	redis *redis.Client // nil: no Redis
}

func (s *service) pids() []int { return descendants(s.root) }

// freeze stops the server: its connections stay open, and nothing is answered until thaw.
func (s *service) freeze() { s.signal(syscall.SIGSTOP) }
func (s *service) thaw()   { s.signal(syscall.SIGCONT) }

func (s *service) signal(sig syscall.Signal) {
	for _, pid := range s.pids() {
		_ = syscall.Kill(pid, sig)
	}
}

// memory returns what the server has in use: Redis by its own account, others by that of the kernel.
func (s *service) memory(ctx context.Context) int64 {
	if s.redis != nil {
		return infoOf(ctx, s.redis, "memory", "Memory", "used_memory")
	}
	return memoryOf(s.pids())
}

func infoOf(ctx context.Context, rdb *redis.Client, section, title, field string) int64 {
	info, err := rdb.InfoMap(ctx, section).Result()
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(info[title][field], 10, 64)
	return n
}

// deleteLock removes the lock behind the back of its holder.
func (s *service) deleteLock(ctx context.Context, name string) error {
	switch s.kind {
	case onRedis: // rueidislock has a prefix of its own, and numbers
		keys, err := s.redis.Keys(ctx, "*"+name+"*").Result()
		if err != nil || len(keys) == 0 {
			return errors.Join(err, fmt.Errorf("%d keys of %s", len(keys), name))
		}
		return s.redis.Del(ctx, keys...).Err()
	case onPostgres: // an advisory lock has no row: its session is ended
		conn, err := pgx.Connect(ctx, "postgres://postgres@"+s.addr+"/postgres?sslmode=disable")
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and granted")
		return err
	case onEtcd:
		etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{s.addr}, Logger: zap.NewNop()})
		if err != nil {
			return err
		}
		defer etcd.Close()
		_, err = etcd.Delete(ctx, "/"+name, clientv3.WithPrefix())
		return err
	}
	return errNotHere
}

// errNotHere is the error of a fault that a server does not have.
var errNotHere = errors.New("not here")

// startService starts a server of a kind.
func (e *environment) startService(kind string) (*service, error) {
	switch kind {
	case onPostgres:
		return startPostgres()
	case onEtcd:
		return startEtcd(e.etcd)
	case onZooKeeper:
		return startZooKeeper(e.jar)
	}
	server, err := redistest.StartServer("")
	if err != nil {
		return nil, err
	}
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr})
	ctx := context.Background()
	info, err := rdb.InfoMap(ctx, "server").Result()
	s := &service{kind: kind, addr: server.Addr, version: info["Server"]["redis_version"], redis: rdb,
		root: int(infoOf(ctx, rdb, "server", "Server", "process_id"))}
	s.close = func() {
		_ = rdb.Close()
		server.Close()
	}
	return s, err
}

// freePort returns a port of the loopback that nobody listened on a moment ago.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// startTimeout is for hangs only: on a busy machine a JVM may need a minute.
const startTimeout = 3 * time.Minute

// until polls ready until it is, the process has ended, or startTimeout is over.
func until(what string, c *child, ready func(context.Context) error) error {
	ctx, stop := context.WithTimeout(context.Background(), startTimeout)
	defer stop()
	for {
		brief, end := context.WithTimeout(ctx, 2*time.Second)
		err := ready(brief)
		end()
		if err == nil {
			return nil
		}
		select {
		case <-c.done:
			return fmt.Errorf("%s has ended: %v\n%s", what, c.err, c.log)
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w\n%s", what, err, c.log)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// startPostgres starts PostgreSQL with its defaults, fsync included, as an unprivileged user if this one is root.
func startPostgres() (s *service, err error) {
	dir, err := os.MkdirTemp("", "relock-open-")
	if err != nil {
		return nil, err
	}
	var c *child
	clean := func() {
		if c != nil {
			c.kill()
		}
		os.RemoveAll(dir)
	}
	defer func() {
		if err != nil {
			clean()
		}
	}()
	as, err := unprivileged(dir)
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	create := exec.Command(postgresProgram("initdb"), "-D", data, "-U", "postgres", "-A", "trust", "--no-sync")
	create.Dir, create.SysProcAttr = dir, as
	if output, err := create.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, output)
	}
	server := exec.Command(postgresProgram("postgres"), "-D", data, "-k", dir, "-p", port, "-c", "listen_addresses=127.0.0.1",
		"-c", "max_connections=1200")
	server.Dir, server.SysProcAttr = dir, as
	if c, err = startChild(server); err != nil {
		return nil, err
	}
	s = &service{kind: onPostgres, addr: "127.0.0.1:" + port, root: c.pid(), close: clean}
	err = until("PostgreSQL", c, func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, "postgres://postgres@"+s.addr+"/postgres?sslmode=disable")
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		return conn.QueryRow(ctx, "show server_version").Scan(&s.version)
	})
	s.version, _, _ = strings.Cut(s.version, " ")
	return s, err
}

// unprivileged returns attributes of a process of the user nobody, who owns dir then: PostgreSQL refuses to run as root.
func unprivileged(dir string) (*syscall.SysProcAttr, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	other, err := user.Lookup("nobody")
	if err != nil {
		return nil, err
	}
	uid, err1 := strconv.Atoi(other.Uid)
	gid, err2 := strconv.Atoi(other.Gid)
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}},
		errors.Join(err1, err2, os.Chown(dir, uid, gid))
}

// postgresProgram is the path of a program of PostgreSQL, "" if there is none. Debian has them outside of the PATH.
func postgresProgram(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	versions, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if len(versions) == 0 {
		return ""
	}
	return versions[len(versions)-1]
}
