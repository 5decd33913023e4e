package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// startZooKeeper starts the ZooKeeper that is in the library of the Java peer, one node with its defaults, fsync included.
// Its ticks are short, so that sessions may be as short as the leases of others.
func startZooKeeper(peer string) (s *service, err error) {
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
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf("tickTime=500\nmaxSessionTimeout=120000\nminSessionTimeout=1000\ndataDir=%s\nclientPort=%s\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n4lw.commands.whitelist=srvr\nadmin.enableServer=false\n",
		dir, port)
	file := filepath.Join(dir, "zoo.cfg")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	if c, err = startChild(exec.Command("java", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", peer,
		"org.apache.zookeeper.server.quorum.QuorumPeerMain", file)); err != nil {
		return nil, err
	}
	s = &service{kind: onZooKeeper, addr: "127.0.0.1:" + port, root: c.pid(), close: clean}
	return s, until("ZooKeeper", c, func(ctx context.Context) error {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "tcp", s.addr)
		if err != nil {
			return err
		}
		defer conn.Close()
		if deadline, has := ctx.Deadline(); has { // a server that is starting may accept, and not answer
			_ = conn.SetDeadline(deadline)
		}
		if _, err := io.WriteString(conn, "srvr"); err != nil {
			return err
		}
		text, err := io.ReadAll(conn)
		first, _, _ := strings.Cut(string(text), "-") // Zookeeper version: 3.9.5-…
		_, version, found := strings.Cut(first, ": ")
		if err == nil && !found {
			err = fmt.Errorf("it answers %q", text)
		}
		s.version = version
		return err
	})
}
