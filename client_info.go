package relock

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
)

// The registration of a client on Redis while it holds or waits, for WithClientInfo. A hold contains only the
// client's uuid; with the registration people can find its host and process.
//
// No lock depends on it. A command that fails is not repeated before its time, and a registration ends with a lease of
// its own.
//
// Each deployment has its own registrar: if one node of a quorum does not answer, a client that has ended must not stay
// registered on the others.
//
// What the goroutine of a registrar does:
//
//	in use, and due      it registers the names (register), and they are due again after an interval
//	in use, and not due  it sleeps until they are, or until the client is closed
//	not in use           it ends (names decides that), and the next hold starts another
//	closed               it removes each name that may be registered (leave), and ends for good
//
// What can come late: a copy of a registration, after the client has ended. It creates the key again, for its
// lease.

const (
	// registrationLease is how long a client stays registered after its last registration. It is three intervals
	// long, so that a command may fail.
	registrationLease = 3 * time.Minute
	// registrationInterval is the time between registrations. Many short holds one after the other cost no more than that.
	registrationInterval = time.Minute
	// mostNames is how many names are registered at a time: a client has one, and one for each earlier identity
	// that was retired while a hold had it.
	mostNames = 16
)

// registrar registers one client on one deployment. It has a goroutine while there are holds, and for an interval at
// most after that.
type registrar struct {
	session *session
	exec    *redisexec.Executor
	info    []any // host, process id, program, since when: the last words of each command

	mu sync.Mutex
	// running: the goroutine is running. start sets it. The goroutine clears it before it ends because
	// the client is not in use; after Close it stays set, so no other goroutine starts.
	running bool

	// These belong to the goroutine. There is one at a time, so they need no mutex.
	last  clock.Instant            // when something was sent
	until map[string]clock.Instant // by name: until when it may be registered
}

// newRegistrar returns a registrar of the client of s on one deployment. It starts nothing, and sends nothing.
func newRegistrar(s *session, exec *redisexec.Executor) *registrar {
	host, _ := os.Hostname()
	program, err := os.Executable()
	if err != nil {
		program = os.Args[0]
	}
	since := s.now().Time().UTC().Format(time.RFC3339)
	return &registrar{
		session: s, exec: exec, until: make(map[string]clock.Instant),
		info: []any{host, strconv.Itoa(os.Getpid()), filepath.Base(program), since},
	}
}

// start starts the goroutine unless it is running. It does not wait for Redis. A hold calls it when it is in its gates: otherwise
// the goroutine might look first, find none, and end. Close calls it after session.closing is closed: the goroutine then
// removes the registration.
func (r *registrar) start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.running {
		r.running = true
		r.session.goroutines.Go(r.run)
	}
}

// run keeps the client registered until it is not in use, or is closed. It blocks while Redis does not
// answer, for one copy of a command at a time, and ends with session.background.
func (r *registrar) run() {
	for {
		names, due, closed := r.names()
		switch {
		case closed:
			r.leave()
			return
		case len(names) == 0:
			return
		case due <= 0:
			r.register(names)
		default:
			timer := time.NewTimer(due)
			select {
			case <-timer.C:
			case <-r.session.closing:
			}
			timer.Stop()
		}
	}
}

// names returns the names to register, how long to wait for that, and whether the client is closed.
// No names, and not closed: the client is not in use. Then the goroutine has to end, and start starts another.
// It looks, and clears running, under one mutex, so it does not miss a start. Whether the client is closed is read under the
// same mutex: a goroutine that has cleared running must not go on, beside another.
func (r *registrar) names() (names []string, due time.Duration, closed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	closed = r.session.closed()
	if names = r.session.uuidsInUse(); len(names) == 0 && !closed {
		r.running = false
	}
	if r.last != (clock.Instant{}) {
		due = registrationInterval - r.session.now().Since(r.last)
	}
	return names[:min(len(names), mostNames)], due, closed
}

// register registers the client under these names. It records each before it is sent: if the answer is
// lost, leave still removes it.
func (r *registrar) register(names []string) {
	now := r.session.now()
	r.last = now
	for name, until := range r.until {
		if now.Until(until) <= 0 {
			delete(r.until, name)
		}
	}
	for _, name := range names {
		r.until[name] = now.After(registrationLease)
		r.send(name, registrationLease)
	}
}

// leave removes each name that may still be registered.
func (r *registrar) leave() {
	for name, until := range r.until {
		if r.session.now().Until(until) > 0 {
			r.send(name, 0)
		}
	}
}

// send sends one command, and waits for it. Its outcome makes no difference.
func (r *registrar) send(name string, lease time.Duration) {
	protocol.Register(r.session.background, r.exec, redisexec.CallOptions{Attempts: 1}, name, lease, r.info...)
}
