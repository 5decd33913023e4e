package main

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// workerEnv marks a process that was started by another one to do its orders.
const workerEnv = "RELOCK_BENCH_WORKER"

func isWorker() bool { return os.Getenv(workerEnv) != "" }

// order is a request to a worker, which performs one at a time.
type order struct {
	Verb verb

	Contender string // openClient
	Setup     setup  // openClient
	Check     bool   // openClient: see check

	Name string // of the lock; the beginning of it where there are several

	Goroutines int           // runLoop, startWaiting
	OwnNames   bool          // runLoop: a lock for each goroutine
	NewNames   bool          // runLoop: a lock of its own for each pair
	Nested     bool          // runLoop: inside a lock that is held
	Background bool          // runLoop: with context.Background(), not with the context of a request
	Reads      float64       // runLoop: the share of locks that are taken to read
	Keep       time.Duration // runLoop: the least duration of each hold
	Start      time.Time     // runLoop
	Duration   time.Duration // runLoop
	Profiles   string        // runLoop: where to write profiles, "" for none

	Locks int // holdMany

	After time.Duration // lockOne, unlockOne, wakeNear: how long to wait before
}

type verb int

const (
	openClient   verb = iota + 1
	runLoop           // locks and unlocks in a loop
	lockOne           // answered when it is held
	unlockOne         // releases it
	wakeNear          // as lockOne and unlockOne do, with a waiter in this process
	startWaiting      // has goroutines wait for a lock that is held
	stopWaiting       // ends those
	holdMany          // takes many locks, to keep them
	dropAll           // releases them
	reportUsage       // of the whole process
	closeClient
)

// answer is the result of an order.
type answer struct {
	Err   string // the cell is void
	Asked int64  // lockOne: when it was called; wakeNear: when it was released; in ns since 1970
	At    int64  // lockOne, wakeNear: when it was held; unlockOne: when it was called; in ns since 1970
	Run   runResult
	Usage resources
}

// wait is the time from Asked to At.
func (a answer) wait() time.Duration { return time.Duration(a.At - a.Asked) }

// serve is the main function of a worker. It ends with the process that started it, even
// in the middle of an order: that is when in ends.
func serve(in io.Reader, out io.Writer) {
	orders := make(chan order)
	go func() {
		decoder := gob.NewDecoder(in)
		for {
			var o order
			if err := decoder.Decode(&o); err != nil {
				os.Exit(0)
			}
			orders <- o
		}
	}()
	encoder := gob.NewEncoder(out)
	var w worker
	for o := range orders {
		a, err := w.do(o)
		if err != nil {
			a.Err = err.Error()
		}
		if err := encoder.Encode(a); err != nil {
			os.Exit(1)
		}
	}
}

// worker is one process that uses one contender.
type worker struct {
	contender contender
	client    client

	setup   setup              // of its client
	locked  mutex              // by lockOne
	end     context.CancelFunc // of the context that locked was locked with
	near    *worker            // by wakeNear: the waiter
	held    []mutex            // by holdMany
	waiters *waiters
}

func (w *worker) do(o order) (answer, error) {
	ctx := context.Background()
	switch o.Verb {
	case openClient:
		return answer{}, w.open(o)
	case runLoop:
		result, err := w.run(o)
		return answer{Run: result}, err
	case lockOne:
		if w.locked == nil {
			w.locked = w.client.Mutex(o.Name)
		}
		time.Sleep(o.After)
		ctx, w.end = request()
		asked := now()
		err := w.locked.Lock(ctx)
		return answer{Asked: asked, At: now()}, err
	case unlockOne:
		defer w.end() // not before: a lock of rueidislock ends with its context
		time.Sleep(o.After)
		at := now()
		return answer{At: at}, w.locked.Unlock()
	case wakeNear:
		return w.wakeNear(o)
	case startWaiting:
		w.waiters = startWaiters(w.client, o.Name, o.Goroutines)
		return answer{}, nil
	case stopWaiting:
		return answer{}, w.waiters.stop()
	case holdMany:
		return answer{}, w.hold(ctx, o.Name, o.Locks)
	case dropAll:
		return answer{}, w.drop()
	case reportUsage:
		return answer{Usage: measureResources()}, nil
	case closeClient:
		return answer{}, w.client.Close()
	default:
		return answer{}, fmt.Errorf("unknown order %d", o.Verb)
	}
}

// wakeNear returns when it released a lock, and when a waiter of this process had it, which has a client of its own.
func (w *worker) wakeNear(o order) (a answer, err error) {
	if w.near == nil {
		w.near = &worker{contender: w.contender}
		if w.near.client, err = w.contender.open(w.setup); err != nil {
			return a, err
		}
	}
	if _, err := w.do(order{Verb: lockOne, Name: o.Name}); err != nil {
		return a, err
	}
	end := make(chan error)
	go func() { // locks and unlocks: an owner may be a goroutine
		got, err := w.near.do(order{Verb: lockOne, Name: o.Name})
		if a.At = got.At; err == nil {
			_, err = w.near.do(order{Verb: unlockOne})
		}
		end <- err
	}()
	gave, err := w.do(order{Verb: unlockOne, After: o.After})
	err = errors.Join(err, <-end)
	a.Asked = gave.At
	return a, err
}

// now is the time that processes of one machine agree on.
func now() int64 { return time.Now().UnixNano() }

func (w *worker) open(o order) (err error) {
	if w.contender, err = contenderNamed(o.Contender); err != nil {
		return err
	}
	if o.Check {
		if err := check(w.contender, o.Setup, o.Name); err != nil {
			return err
		}
	}
	w.setup = o.Setup
	w.client, err = w.contender.open(o.Setup)
	return err
}

// How long a lock that is held is asked for by another client, and how long one may take
// to be had that is free.
var (
	checkBusy = 30 * time.Millisecond
	checkFree = 10 * time.Second
)

// check proves that the contender locks at all: of two clients only one gets a name, as often as the limit allows, and
// the other one gets it after that.
func check(c contender, s setup, name string) (err error) {
	var clients [2]client
	for i := range clients {
		if clients[i], err = c.open(s); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, clients[i].Close()) }()
	}
	ctx, stop := context.WithTimeout(context.Background(), checkFree)
	defer stop()
	var holder mutex
	for range s.Places() {
		holder = clients[0].Mutex(name)
		if err := holder.Lock(ctx); err != nil {
			return err
		}
	}
	busy, stopBusy := context.WithTimeout(ctx, checkBusy)
	defer stopBusy()
	if err := clients[1].Mutex(name).Lock(busy); err == nil {
		return fmt.Errorf("two holders: a second client got %q while the first one held it", name)
	} else if busy.Err() == nil {
		return err
	}
	if err := holder.Unlock(); err != nil {
		return err
	}
	next := clients[1].Mutex(name)
	if err := next.Lock(ctx); err != nil {
		return fmt.Errorf("%q was released, and nobody gets it: %w", name, err)
	}
	if err := next.Unlock(); err != nil {
		return err
	}
	return checkSides(ctx, holder, next, name)
}

// checkSides proves of locks that can be read that one reads beside the other, and neither
// beside a writer.
func checkSides(ctx context.Context, a, b mutex, name string) error {
	readA, shared := readSide(a)
	if !shared {
		return nil
	}
	readB, _ := readSide(b)
	for _, t := range []struct {
		holder, other mutex
		what          string
		together      bool
	}{
		{readA, readB, "a reader beside a reader", true},
		{readA, b, "a writer beside a reader", false},
		{a, readB, "a reader beside a writer", false},
	} {
		if err := t.holder.Lock(ctx); err != nil {
			return err
		}
		patience := checkBusy
		if t.together {
			patience = checkFree
		}
		brief, stop := context.WithTimeout(ctx, patience)
		err := t.other.Lock(brief)
		stop()
		switch {
		case err == nil && !t.together:
			return fmt.Errorf("two holders of %q: %s", name, t.what)
		case err == nil:
			err = t.other.Unlock()
		case !t.together && brief.Err() != nil:
			err = nil
		}
		if err := errors.Join(err, t.holder.Unlock()); err != nil {
			return fmt.Errorf("%s: %w", t.what, err)
		}
	}
	return nil
}

// hold takes n locks and keeps them.
func (w *worker) hold(ctx context.Context, name string, n int) error {
	w.held = make([]mutex, n)
	for i := range w.held {
		w.held[i] = w.client.Mutex(fmt.Sprintf("%s:%d", name, i))
		if err := w.held[i].Lock(ctx); err != nil {
			return err
		}
	}
	return nil
}

// drop releases them, which must succeed, because none was lost.
func (w *worker) drop() error {
	var errs []error
	for _, m := range w.held {
		if err := m.Unlock(); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("%d of %d locks were lost: %w", len(errs), len(w.held), errs[0])
	}
	return nil
}
