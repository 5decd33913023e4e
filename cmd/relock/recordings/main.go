// Recordings runs "relock watch" and the quickstart, and draws what they print as animated pictures:
//
//	go run -C cmd/relock ./recordings ../../docs/pictures
//
// Both programs run in a terminal, on an embedded Redis. The picture shows their output as it was, except that the
// locks are held by machines with the names web-1, web-2 and web-3.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/creack/pty"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: recordings DIR")
		os.Exit(2)
	}
	if err := recordAll(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "recordings:", err)
		os.Exit(1)
	}
}

// patience is how long all takes at most, with the compilation.
const patience = 5 * time.Minute

// recordAll makes both pictures in dir.
func recordAll(dir string) error {
	programs, err := os.MkdirTemp("", "recordings")
	if err != nil {
		return err
	}
	defer os.RemoveAll(programs)
	redis, err := miniredis.Run()
	if err != nil {
		return err
	}
	defer redis.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()

	relock, quickstart := filepath.Join(programs, "relock"), filepath.Join(programs, "quickstart")
	if err := errors.Join(build(ctx, relock, ".", "."), build(ctx, quickstart, "../..", "./examples/quickstart")); err != nil {
		return err
	}
	watch, err := recordWatch(ctx, relock, "redis://"+redis.Addr())
	if err != nil {
		return fmt.Errorf("relock watch: %w", err)
	}
	demo, err := record(exec.CommandContext(ctx, quickstart), nil)
	if err != nil {
		return fmt.Errorf("quickstart: %w", err)
	}
	for name, text := range map[string]string{
		"watch.svg":      draw("relock watch follows a lock that three machines use in turn", "relock watch deploy", watch),
		"quickstart.svg": draw("The quickstart: four services share locks", "go run ./examples/quickstart", demo),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// build compiles the program in a directory of a module.
func build(ctx context.Context, program, module, dir string) error {
	if output, err := exec.CommandContext(ctx, "go", "build", "-C", module, "-o", program, dir).CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w: %s", dir, err, output)
	}
	return nil
}

// holds are the uses of the lock that "relock watch" shows: when each "relock run" begins, and how long its command takes.
var holds = []struct{ begin, work time.Duration }{
	{time.Second, 4 * time.Second},
	{2 * time.Second, 2 * time.Second},
	{3500 * time.Millisecond, 1500 * time.Millisecond},
}

// recordWatch records "relock watch deploy" while several "relock run deploy" use the lock.
func recordWatch(ctx context.Context, relock, redis string) ([]line, error) {
	env := append(os.Environ(), "RELOCK_REDIS="+redis, "TERM=xterm", "TZ=UTC", "NO_COLOR=")
	watch := exec.CommandContext(ctx, relock, "watch", "deploy")
	watch.Env = env
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	var names []string // pairs of what is replaced, and by what
	lines, err := record(watch, func() error {
		began := time.Now()
		var runs []*exec.Cmd
		for i, h := range holds {
			time.Sleep(time.Until(began.Add(h.begin)))
			run := exec.CommandContext(ctx, relock, "run", "deploy", "--", "sleep", strconv.FormatFloat(h.work.Seconds(), 'f', -1, 64))
			run.Env = env
			if err := run.Start(); err != nil {
				return err
			}
			machine, pid := fmt.Sprint("web-", i+1), strconv.Itoa(run.Process.Pid)
			names = append(names, host+"/"+pid, machine+"/"+pid, host+" relock["+pid+"]", machine+" relock["+pid+"]")
			runs = append(runs, run)
		}
		for _, run := range runs {
			if err := run.Wait(); err != nil {
				return fmt.Errorf("relock run: %w", err)
			}
		}
		time.Sleep(time.Second) // "relock watch" shows that the lock is free
		return watch.Process.Signal(syscall.SIGINT)
	})
	for i := range lines {
		lines[i].text = strings.NewReplacer(names...).Replace(lines[i].text)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGINT { // sent above
		err = nil
	}
	return lines, err
}

// record runs cmd in a terminal and returns what it prints. meanwhile, unless it is nil, is called while cmd runs.
func record(cmd *exec.Cmd, meanwhile func() error) ([]line, error) {
	began := time.Now()
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 50, Cols: 500}) // draw wraps long lines
	if err != nil {
		return nil, err
	}
	defer terminal.Close()
	done := make(chan error, 1)
	go func() {
		if meanwhile == nil {
			done <- nil
			return
		}
		done <- meanwhile()
	}()
	var lines []line
	for output := bufio.NewScanner(terminal); output.Scan(); { // until cmd has closed the terminal
		lines = append(lines, lineOf(time.Since(began), strings.TrimRight(output.Text(), "\r")))
	}
	if err := <-done; err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, err
	}
	return lines, cmd.Wait()
}
