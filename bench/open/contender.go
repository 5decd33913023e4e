package main

import (
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/relock-go/relock/bench/contend"
)

// contender is a way to lock that takes part, configured as its own documentation recommends.
type contender struct {
	name   string
	legend string // how it is set up
	server string // which kind of server it locks on
	// What decides before speed does: what remains of a lock if its server crashes.
	durable string

	open func(contend.Setup) (contend.Client, error) // nil: a worker that is not written in Go
	peer string                                      // peerJava, peerPython: what such a worker is written in

	module  string // whose version is printed
	threads int    // that wait at a time in one process: goroutines are cheap, threads and connections are not
}

// Kinds of servers.
const (
	onRedis     = "Redis"
	onPostgres  = "PostgreSQL"
	onEtcd      = "etcd"
	onZooKeeper = "ZooKeeper"
)

const (
	peerJava   = "java"
	peerPython = "python"
)

// Every lock on Redis ends with the memory of its master, however it is made.
const inMemory = "memory of one node; replicas follow later"

const relockName = "relock"

var contenders = []contender{
	{name: relockName, server: onRedis, durable: inMemory, open: contend.Relock(), threads: 2000,
		legend: "`Mutex`, defaults: lease 30 s, renewed"},
	{name: "relock fair", server: onRedis, durable: inMemory, open: contend.RelockFair, threads: 2000,
		legend: "`FairMutex`, the same defaults: first come, first served over all processes"},
	{name: "rueidislock", server: onRedis, durable: inMemory, open: contend.Rueidislock, module: "github.com/redis/rueidis", threads: 2000,
		legend: "`KeyMajority: 1`, `NoLoopTracking: true`, as for one Redis; `TryNextAfter: 1s`; lease 5 s, renewed"},
	{name: "redsync", server: onRedis, durable: inMemory, open: contend.Redsync(), module: "github.com/go-redsync/redsync/v4", threads: 2000,
		legend: "defaults: lease 8 s, not renewed; polls every 50 to 250 ms; called again after 32 failed tries"},
	{name: "redislock", server: onRedis, durable: inMemory, open: contend.Redislock(100 * time.Millisecond), module: "github.com/bsm/redislock", threads: 2000,
		legend: "`LinearBackoff(100ms)`, as in its README: polls every 100 ms; lease 30 s, not renewed"},
	{name: "Redisson", server: onRedis, durable: inMemory, peer: peerJava, module: "redisson", threads: 128,
		legend: "`RLock.tryLock(wait)`, defaults: lease 30 s, renewed; one JVM, warmed up"},
	{name: "redis-py", server: onRedis, durable: inMemory, peer: peerPython, module: "redis", threads: 64,
		legend: "`Lock(timeout=30)`, `sleep=0.1` by default: polls every 100 ms; not renewed; threads of one CPython process, with hiredis"},
	{name: "PostgreSQL", server: onPostgres, durable: "ends with its connection; no write, so nothing to sync", open: openPostgres, module: "github.com/jackc/pgx/v5", threads: 64,
		legend: "`pg_advisory_lock` on pgx' pool, a connection for each lock that is held or waited for; no lease"},
	{name: "etcd", server: onEtcd, durable: "log on disk, fsync; consensus, here of one node", open: openEtcd, module: "go.etcd.io/etcd/client/v3", threads: 256,
		legend: "`concurrency.Mutex`, a session for each goroutine that wants the same name; lease 60 s, renewed"},
	{name: "ZooKeeper", server: onZooKeeper, durable: "log on disk, fsync; consensus, here of one node", peer: peerJava, module: "curator-recipes", threads: 128,
		legend: "Curator's `InterProcessMutex`, one client for each JVM, warmed up; session 60 s"},
}

func contenderNamed(name string) (contender, error) {
	var names []string
	for _, c := range contenders {
		if c.name == name {
			return c, nil
		}
		names = append(names, c.name)
	}
	return contender{}, fmt.Errorf("no contender is called %q; there are %s", name, strings.Join(names, "; "))
}

// missing returns what has to be installed before the contender can take part, "" if it can.
func (c contender) missing() string {
	programs := map[string][]string{peerJava: {"java", "mvn"}, peerPython: {"python3"}}[c.peer]
	if c.server == onRedis {
		programs = append(programs, "redis-server")
	}
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			return "no " + program + " on the PATH"
		}
	}
	if c.server == onPostgres && (postgresProgram("initdb") == "" || postgresProgram("postgres") == "") {
		return "no PostgreSQL: on Debian it is in the package postgresql"
	}
	return ""
}
