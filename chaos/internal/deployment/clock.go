package deployment

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// clockSource is a library that shifts the wall clock of the program into which it is loaded.
//
//go:embed clockshim/shim.c
var clockSource []byte

// ErrNoCompiler reports that a server's clock cannot be set here.
var ErrNoCompiler = errors.New("setting a server's clock takes a C compiler: no gcc on PATH")

// clock is the wall clock of a server: a file that the library in that server reads.
type clock struct {
	dir string
}

// CanSetClocks reports whether a server can have a clock of its own here: whether there is a C compiler.
func CanSetClocks() bool {
	_, err := exec.LookPath("gcc")
	return err == nil
}

func newClock() (*clock, error) {
	if !CanSetClocks() {
		return nil, ErrNoCompiler
	}
	dir, err := os.MkdirTemp("", "chaos-clock-")
	if err != nil {
		return nil, err
	}
	c := &clock{dir: dir}
	source := filepath.Join(dir, "shim.c")
	if err = errors.Join(os.WriteFile(source, clockSource, 0o600), c.shift(0)); err == nil {
		var said []byte
		if said, err = exec.Command("gcc", "-shared", "-fPIC", "-O2", "-o", c.library(), source).CombinedOutput(); err != nil {
			err = fmt.Errorf("gcc: %w: %s", err, said)
		}
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *clock) library() string { return filepath.Join(c.dir, "shim.so") }
func (c *clock) file() string    { return filepath.Join(c.dir, "shift") }

// with makes the programs that start starts run by this clock.
func (c *clock) with(start func() error) error {
	for name, value := range map[string]string{"LD_PRELOAD": c.library(), "CLOCK_SHIFT": c.file()} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
		defer os.Unsetenv(name)
	}
	return start()
}

// shift sets the clock to d after the true time.
func (c *clock) shift(d time.Duration) error {
	f, err := os.OpenFile(c.file(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], uint64(d))
	_, err = f.WriteAt(b[:], 0) // the file is mapped: it is never cut
	return errors.Join(err, f.Close())
}

func (c *clock) close() { _ = os.RemoveAll(c.dir) }
