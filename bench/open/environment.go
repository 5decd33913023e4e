package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// environment is what workers that are not written in Go need, in a temporary directory.
type environment struct {
	dir        string
	jar        string // the Java peer, whose library has ZooKeeper
	etcd       string // the server
	script     string
	pythonPath string
}

//go:embed python/locks.py
var pythonScript string

// redisPy is the version of the library that is fetched.
const redisPy = "8.1.0"

// newEnvironment builds the Java peer and fetches the Python library, and builds etcd, if a contender needs them. Without a
// JDK, Maven or Python it does not: see missing.
func newEnvironment(ctx context.Context, contenders []contender) (*environment, error) {
	dir, err := os.MkdirTemp("", "relock-open-")
	if err != nil {
		return nil, err
	}
	e := &environment{dir: dir, jar: filepath.Join(dir, "java", "peer.jar"), etcd: filepath.Join(dir, "etcd"),
		script: filepath.Join(dir, "locks.py"), pythonPath: filepath.Join(dir, "python")}
	needs := func(peer string) bool {
		return slices.ContainsFunc(contenders, func(c contender) bool { return c.peer == peer && c.missing() == "" })
	}
	if needs(peerJava) {
		err = errors.Join(err, e.run(ctx, "mvn", "--batch-mode", "--quiet", "--file", filepath.Join("java", "pom.xml"), "-Doutput="+filepath.Dir(e.jar), "package"))
	}
	if slices.ContainsFunc(contenders, func(c contender) bool { return c.server == onEtcd }) {
		err = errors.Join(err, e.run(ctx, "go", "build", "-o", e.etcd, "./etcd"))
	}
	if needs(peerPython) {
		err = errors.Join(err, os.WriteFile(e.script, []byte(pythonScript), 0o600),
			e.run(ctx, "python3", "-m", "pip", "install", "--quiet", "--target", e.pythonPath, "redis[hiredis]=="+redisPy))
	}
	if err != nil {
		e.close()
	}
	return e, err
}

func (e *environment) run(ctx context.Context, program string, args ...string) error {
	ctx, stop := context.WithTimeout(ctx, 5*time.Minute)
	defer stop()
	if output, err := exec.CommandContext(ctx, program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, output)
	}
	return nil
}

func (e *environment) close() { os.RemoveAll(e.dir) }
