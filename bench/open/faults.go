package main

import (
	"context"
	"time"
)

// The faults, each on one screen.

// beforeUnlock is how long a waiter is dead before the lock is unlocked. A server needs a moment to close connections.
const beforeUnlock = 100 * time.Millisecond

func killHolder(_ context.Context, r *recoveryRun) (outcome, error) {
	if err := r.gather(); err != nil {
		return outcome{}, err
	}
	at := time.Now()
	r.holder.crash()
	return r.await(at, nil), nil
}

func killWaiter(_ context.Context, r *recoveryRun) (outcome, error) {
	if err := r.gather(); err != nil {
		return outcome{}, err
	}
	first := r.crowd[0]
	first.crash()
	<-first.done
	time.Sleep(beforeUnlock)
	at := time.Now()
	r.unlock()
	return r.await(at, first), nil
}

func killMaster(ctx context.Context, r *recoveryRun) (outcome, error) {
	if r.c.server != onRedis {
		return outcome{Note: errNotHere.Error()}, nil
	}
	s, err := sentinelOf(r)
	if err != nil {
		return outcome{}, err
	}
	defer s.Close()
	if err := r.gather(); err != nil {
		return outcome{}, err
	}
	master, err := s.Master(ctx)
	if err != nil {
		return outcome{}, err
	}
	at := time.Now()
	master.Kill()
	r.unlock()
	return r.await(at, nil), nil
}

func silent(_ context.Context, r *recoveryRun) (outcome, error) {
	if err := r.gather(); err != nil {
		return outcome{}, err
	}
	r.service.freeze()
	defer r.service.thaw() // also if the driver fails meanwhile
	r.unlock()
	time.Sleep(silence)
	at := time.Now()
	r.service.thaw()
	return r.await(at, nil), nil
}

func deleted(ctx context.Context, r *recoveryRun) (outcome, error) {
	if err := r.begin(); err != nil {
		return outcome{}, err
	}
	return r.learns(func() error { return r.service.deleteLock(ctx, r.name) })
}

func flushed(ctx context.Context, r *recoveryRun) (outcome, error) {
	if r.service.redis == nil {
		return outcome{Note: errNotHere.Error()}, nil
	}
	if err := r.begin(); err != nil {
		return outcome{}, err
	}
	return r.learns(func() error { return r.service.redis.FlushAll(ctx).Err() })
}

func stopped(_ context.Context, r *recoveryRun) (outcome, error) {
	if err := r.begin(); err != nil {
		return outcome{}, err
	}
	defer r.service.thaw()
	return r.learns(func() error {
		r.service.freeze()
		return nil
	})
}

func cut(_ context.Context, r *recoveryRun) (outcome, error) {
	cable, err := startRelay(r.service.addr)
	if err != nil {
		return outcome{}, err
	}
	defer cable.close()
	r.open.Addr = cable.addr
	defer r.stop() // before the relay closes: it waits for connections
	if err := r.begin(); err != nil {
		return outcome{}, err
	}
	return r.learns(func() error {
		cable.pull()
		return nil
	})
}
