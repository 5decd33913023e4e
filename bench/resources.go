package main

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"time"

	"github.com/relock-go/relock/bench/contend"
)

// resources are what a process uses.
type resources struct {
	Memory     uint64 // bytes of live heap objects and of stacks
	Goroutines int
	CPU        time.Duration // so far
	Sent       int64         // commands so far
}

// measureResources collects garbage first, so that only what is in use is counted.
func measureResources() resources {
	cpu, commands := cpuTime(), contend.Sent.Load()
	runtime.GC() // twice: what a finalizer or a pool held on to is gone only after the second
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return resources{
		Memory:     m.HeapAlloc + m.StackInuse,
		Goroutines: runtime.NumGoroutine(),
		CPU:        cpu,
		Sent:       commands,
	}
}

// profiles are being written to files that begin with prefix; nil: none are.
type profiles struct {
	prefix string
	cpu    *os.File
}

func startProfiles(prefix string) (*profiles, error) {
	if prefix == "" {
		return nil, nil
	}
	if err := os.MkdirAll(filepath.Dir(prefix), 0o755); err != nil {
		return nil, err
	}
	cpu, err := os.Create(prefix + ".cpu")
	if err != nil {
		return nil, err
	}
	runtime.SetMutexProfileFraction(10)
	runtime.SetBlockProfileRate(int(10 * time.Microsecond))
	return &profiles{prefix, cpu}, pprof.StartCPUProfile(cpu)
}

func (p *profiles) stop() error {
	if p == nil {
		return nil
	}
	pprof.StopCPUProfile()
	errs := []error{p.cpu.Close()}
	for _, kind := range []string{"allocs", "mutex", "block"} {
		file, err := os.Create(p.prefix + "." + kind)
		if err == nil {
			err = errors.Join(pprof.Lookup(kind).WriteTo(file, 0), file.Close())
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
