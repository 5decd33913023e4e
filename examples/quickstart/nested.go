package main

import (
	"context"
	"fmt"
)

// nest shows that a holder may lock again: the lock is free after the last Unlock.
func (d *demo) nest(ctx context.Context) error {
	n := d.nesting()
	if err := n.outer(ctx); err != nil {
		return err
	}
	return n.expect(ctx, "after the last Unlock", 0, true)
}

// nesting is a worker whose functions call each other, and another one that looks on.
type nesting struct {
	*demo
	mine, other mutex
}

func (d *demo) nesting() *nesting {
	return &nesting{
		demo:  d,
		mine:  d.workers[0].mutex(nestedLock),
		other: d.workers[1].mutex(nestedLock),
	}
}

func (n *nesting) outer(ctx context.Context) error {
	if err := n.mine.Lock(ctx); err != nil {
		return err
	}
	defer n.mine.Unlock()
	if err := n.inner(ctx); err != nil {
		return err
	}
	return n.expect(ctx, "back in outer", 1, false)
}

func (n *nesting) inner(ctx context.Context) error {
	if err := n.mine.Lock(ctx); err != nil {
		return err
	}
	defer n.mine.Unlock()
	return n.expect(ctx, "in inner", 2, false)
}

// expect checks the hold count, and whether another worker can get the lock.
func (n *nesting) expect(ctx context.Context, where string, count int, free bool) error {
	if got := n.mine.HoldCount(); got != count {
		return fmt.Errorf("%s: the hold count is %d instead of %d", where, got, count)
	}
	got, err := n.other.TryLock(ctx)
	if err != nil {
		return err
	}
	if got {
		defer n.other.Unlock()
	}
	if got != free {
		return fmt.Errorf("%s: TryLock of another worker says %t", where, got)
	}
	n.print(n.workers[0].name, "%-21s  hold count %d, TryLock of %s: %t", where, count, n.workers[1].name, got)
	return nil
}
