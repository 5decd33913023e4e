package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// startEtcd starts an etcd of one node with the defaults of a server, fsync included.
func startEtcd(program string) (s *service, err error) {
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
	clients, err := freePort()
	if err != nil {
		return nil, err
	}
	peers, err := freePort()
	if err != nil {
		return nil, err
	}
	if c, err = startChild(exec.Command(program, filepath.Join(dir, "data"), clients, peers)); err != nil {
		return nil, err
	}
	s = &service{kind: onEtcd, addr: "127.0.0.1:" + clients, root: c.pid(), close: clean}
	return s, until("etcd", c, func(ctx context.Context) error {
		etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{s.addr}, Context: ctx, Logger: zap.NewNop()})
		if err != nil {
			return err
		}
		defer etcd.Close()
		status, err := etcd.Status(ctx, s.addr)
		if err == nil {
			s.version = status.Version
		}
		return err
	})
}
