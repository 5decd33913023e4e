package main

import (
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/bench/contend"
)

type quorumClient struct {
	rdbs  []redis.UniversalClient
	locks *relock.Client
}

func openQuorum(s setup) (client, error) {
	c := &quorumClient{}
	for _, addr := range s.Addrs {
		c.rdbs = append(c.rdbs, contend.GoRedis(setup{Addr: addr}))
	}
	var err error
	if c.locks, err = relock.NewQuorum(c.rdbs); err != nil {
		return nil, errors.Join(err, c.closeRedis())
	}
	return c, nil
}

func (c *quorumClient) Mutex(name string) mutex { return c.locks.Mutex(name) }

func (c *quorumClient) Close() error { return errors.Join(c.locks.Close(), c.closeRedis()) }

func (c *quorumClient) closeRedis() error {
	var err error
	for _, rdb := range c.rdbs {
		err = errors.Join(err, rdb.Close())
	}
	return err
}
