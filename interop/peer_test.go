package interop

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A command is a line to the Java program, which documents it.
type command struct {
	ID         int64    `json:"id"`
	Thread     string   `json:"thread"`
	Op         string   `json:"op"`
	Kind       string   `json:"kind,omitempty"`
	Members    []member `json:"members,omitempty"`
	WaitTime   int64    `json:"waitTime,omitempty"`
	LeaseTime  int64    `json:"leaseTime,omitempty"`
	Deployment *place   `json:"deployment,omitempty"`
	Threads    int      `json:"threads,omitempty"`
	Duration   int64    `json:"duration,omitempty"`
	Hold       int64    `json:"hold,omitempty"`
	Limit      int      `json:"limit,omitempty"`
}

type member struct {
	Client string `json:"client"`
	Name   string `json:"name"`
}

type place struct {
	Client    string   `json:"client"`
	Mode      string   `json:"mode"`
	Addresses []string `json:"addresses"`
	Master    string   `json:"master,omitempty"`
	Sharded   bool     `json:"sharded"`
	Watchdog  int64    `json:"watchdog"`
}

// An answer is a line from the Java program. The times come from the system's clock.
type answer struct {
	ID          int64           `json:"id"`
	Value       json.RawMessage `json:"value"`
	Error       string          `json:"error"`
	BeganMicros int64           `json:"beganMicros"`
	EndedMicros int64           `json:"endedMicros"`
}

func (a answer) began() time.Time { return time.UnixMicro(a.BeganMicros) }
func (a answer) ended() time.Time { return time.UnixMicro(a.EndedMicros) }

// err is the exception that the command ended with.
func (a answer) err() error {
	if a.Error == "" {
		return nil
	}
	return fmt.Errorf("java: %s", a.Error)
}

// A peer is a Java process that executes requests.
type peer struct {
	process *exec.Cmd
	input   io.WriteCloser
	over    chan struct{} // closed when the process has ended

	mu      sync.Mutex // guards the rest, and writing to input
	next    int64
	pending map[int64]chan answer
}

// peerJar names the built program. Without it the test is skipped, or fails if
// RELOCK_REQUIRE_JAVA=1.
func peerJar(t *testing.T) string {
	t.Helper()
	jar := os.Getenv("RELOCK_JAVA_PEER")
	switch {
	case jar != "":
	case os.Getenv("RELOCK_REQUIRE_JAVA") == "1":
		require.Fail(t, "RELOCK_REQUIRE_JAVA=1, but RELOCK_JAVA_PEER names no peer.jar: interop/run builds it")
	default:
		t.Skip("no Java peer: interop/run builds it and runs these tests")
	}
	return jar
}

func startPeer(jar string) (*peer, error) {
	// Options for many short lives: little compilation, one thread that collects garbage.
	p := &peer{
		process: exec.Command("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m", "-jar", jar),
		over:    make(chan struct{}),
		pending: make(map[int64]chan answer),
	}
	input, err := p.process.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := p.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.input, p.process.Stderr = input, os.Stderr
	if err := p.process.Start(); err != nil {
		return nil, err
	}
	go p.listen(output)
	return p, nil
}

// newPeer starts a process of the test's own.
func newPeer(t *testing.T) *peer {
	t.Helper()
	p, err := startPeer(peerJar(t))
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// listen hands answers to those who wait for them, until the process ends.
func (p *peer) listen(output io.Reader) {
	defer close(p.over)
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		var a answer
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			fmt.Fprintf(os.Stderr, "the Java peer said %q: %v\n", lines.Text(), err)
			continue
		}
		p.mu.Lock()
		waiting := p.pending[a.ID]
		delete(p.pending, a.ID)
		p.mu.Unlock()
		if waiting != nil {
			waiting <- a
		}
	}
	_ = p.process.Wait() // how it ended does not matter: its end is noticed
}

// begin sends a command, and returns where its answer will be. If the process ends first
// there will be none.
func (p *peer) begin(c command) <-chan answer {
	result := make(chan answer, 1)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	c.ID = p.next
	p.pending[c.ID] = result
	if err := json.NewEncoder(p.input).Encode(c); err != nil {
		result <- answer{ID: c.ID, Error: err.Error()}
	}
	return result
}

// call sends a command and waits for its answer.
func (p *peer) call(t *testing.T, c command) answer {
	t.Helper()
	return p.receive(t, p.begin(c), soonEnough)
}

func (p *peer) receive(t *testing.T, result <-chan answer, within time.Duration) answer {
	t.Helper()
	select {
	case a := <-result:
		return a
	case <-p.over:
		require.Fail(t, "the Java process has ended")
	case <-time.After(within):
		require.Fail(t, "Java did not answer in time")
	}
	return answer{}
}

// die ends the process as a crash does, and waits for its end.
func (p *peer) die(t *testing.T) {
	t.Helper()
	p.begin(command{Op: "die"})
	select {
	case <-p.over:
	case <-time.After(soonEnough):
		require.Fail(t, "the Java process does not die")
	}
}

// Close ends the process, whatever it is doing.
func (p *peer) Close() {
	_ = p.process.Process.Kill()
	<-p.over
	_ = p.input.Close()
}
