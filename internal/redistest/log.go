package redistest

import (
	"slices"
	"strings"
	"time"
)

// Entry is a command in a relay's log.
type Entry struct {
	Command Command
	Conn    int       // the client's connection, numbered from 1; 0 for a delivered command
	Time    time.Time // when it was forwarded
	Reply   string    // the beginning of the raw reply, "" while there is none
}

const (
	logSize   = 1 << 16 // entries
	replySize = 128     // bytes of a reply
)

// Log returns the commands that were forwarded to the server, in that order: the last
// 65536 of them at most. It includes what clients send to set up a connection.
func (r *Relay) Log() []Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	entries := make([]Entry, len(r.log))
	for i, entry := range r.log {
		entries[i] = *entry
	}
	return entries
}

// ResetLog empties the log, so that Count and Executed start from zero.
func (r *Relay) ResetLog() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = nil
}

// Count is the number of matching commands in the log. A command is in it when it is
// forwarded, before its reply.
func (r *Relay) Count(match Match) int {
	return r.count(func(e *Entry) bool { return match(e.Command) })
}

// Executed is Count without the commands that were answered with an error, such as an
// EVALSHA that got NOSCRIPT.
func (r *Relay) Executed(match Match) int {
	return r.count(func(e *Entry) bool { return !strings.HasPrefix(e.Reply, "-") && match(e.Command) })
}

func (r *Relay) count(cond func(*Entry) bool) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, entry := range r.log {
		if cond(entry) {
			n++
		}
	}
	return n
}

// record logs a command that is about to be forwarded.
func (r *Relay) record(conn int, command Command) *Entry {
	entry := &Entry{Command: command, Conn: conn, Time: time.Now()}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.log) == logSize {
		r.log = slices.Delete(r.log, 0, logSize/4) // seldom, so cheap
	}
	r.log = append(r.log, entry)
	return entry
}

// answered logs the reply to a command.
func (r *Relay) answered(entry *Entry, reply string) {
	if len(reply) > replySize {
		reply = reply[:replySize]
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	entry.Reply = strings.Clone(reply)
}
