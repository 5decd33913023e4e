package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/relock-go/relock/bench/contend"
)

// workerEnv marks a process that was started by another one to perform its orders, or to be its server.
const workerEnv = "RELOCK_OPEN_WORKER"

// serve is the main function of a worker in Go.
func serve(in io.Reader, out io.Writer) {
	w := worker{encoder: json.NewEncoder(out), kept: make(map[string]*keeping)}
	orders := json.NewDecoder(in)
	for {
		var o order
		if err := orders.Decode(&o); err != nil {
			os.Exit(0)
		}
		if o.Op == opOpen {
			w.answer(o, w.open(o))
			continue
		}
		go func() { w.answer(o, w.do(o)) }()
	}
}

// worker is one process that uses one contender written in Go.
type worker struct {
	client contend.Client

	mu      sync.Mutex // guards encoder and kept
	encoder *json.Encoder
	kept    map[string]*keeping
}

// keeping is a lock that is held until an unlock. Locks belong to the goroutine that has acquired them.
type keeping struct {
	informed context.Context // nil: the library does not report a loss
	unlock   chan struct{}
	unlocked chan answer
}

func (w *worker) answer(o order, a answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a.ID = o.ID
	if err := w.encoder.Encode(a); err != nil {
		os.Exit(1)
	}
}

func (w *worker) open(o order) answer {
	c, err := contenderNamed(o.Contender)
	if err == nil {
		w.client, err = c.open(contend.Setup{Addr: o.Addr, Sentinels: o.Sentinels, Master: o.Master, Lease: time.Duration(o.Lease) * time.Microsecond})
	}
	return failed(err)
}

func failed(err error) answer {
	if err == nil {
		return answer{}
	}
	return answer{Err: err.Error()}
}

func (w *worker) do(o order) answer {
	switch o.Op {
	case opLoad:
		return load(w.client, o)
	case opClosed:
		return closed(w.client, o)
	case opLock:
		return w.lock(o)
	case opUnlock:
		k := w.keeping(o.Name)
		close(k.unlock)
		return <-k.unlocked
	case opLost:
		k := w.keeping(o.Name)
		if k.informed == nil {
			return answer{Err: noNotice}
		}
		<-k.informed.Done()
		return answer{At: now()}
	case opHold:
		for i := range o.Count {
			if err := w.client.Mutex(fmt.Sprintf("%s:%d", o.Name, i)).Lock(context.Background()); err != nil {
				return failed(err)
			}
		}
		return answer{Served: o.Count}
	case opCrowd:
		for range o.Count {
			go func() { _ = w.client.Mutex(o.Name).Lock(context.Background()) }() // ends with the process
		}
		return answer{}
	case opUsage:
		runtime.GC()
		runtime.GC() // what a finalizer or a pool held on to is gone only after the second
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return answer{Heap: int64(m.HeapAlloc + m.StackInuse)}
	}
	return failed(fmt.Errorf("unknown order %q", o.Op))
}

// noNotice is the error of a library that does not report losses.
const noNotice = "no notice"

func (w *worker) keeping(name string) *keeping {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.kept[name]
}

// retry is how long after an error a lock is tried again.
const retry = 100 * time.Millisecond

// lock answers when the lock is held. If the lock is to be kept, a goroutine of its own holds it until the unlock.
func (w *worker) lock(o order) answer {
	held := make(chan answer, 1)
	go func() {
		m := w.client.Mutex(o.Name)
		for m.Lock(context.Background()) != nil {
			time.Sleep(retry) // as an application does
			m = w.client.Mutex(o.Name)
		}
		got := answer{At: now()}
		if !o.Keep {
			_ = m.Unlock() // if this fails, the next waiter is served late, and that is measured
			held <- got
			return
		}
		k := &keeping{unlock: make(chan struct{}), unlocked: make(chan answer, 1)}
		if informed, is := m.(contend.Informed); is {
			k.informed = informed.Context(context.Background())
		}
		w.mu.Lock()
		w.kept[o.Name] = k
		w.mu.Unlock()
		held <- got
		<-k.unlock
		a := failed(m.Unlock())
		a.At = now()
		k.unlocked <- a
	}()
	return <-held
}

// isEnd reports whether err is the end of the time to wait, not a failure of the library.
func isEnd(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Canceled))
}
