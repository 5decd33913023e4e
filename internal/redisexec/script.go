package redisexec

import (
	"crypto/sha1"
	"encoding/hex"
	"math"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/clock"
)

// Script is a Lua script. It is identified by its address: each is one variable of a package.
type Script struct {
	parts []string

	assembled sync.Once
	source    string
	digest    any // in a box as go-redis takes it

	// LooksFirst: it touches every key that it needs before it changes anything. If it is refused
	// because a key is not on that node, it may be sent again.
	LooksFirst bool
}

// NewScript returns the script that consists of parts, each of which is whole lines of Lua. The parts are assembled when
// the script is first used: a program that imports this library may end after milliseconds, and few programs use all scripts.
func NewScript(parts ...string) *Script { return &Script{parts: parts} }

// Source returns what is sent: the parts, without lines that are comments. Redis identifies a script by its hash, so a
// changed comment does not make a new script. Lines that begin with "--!" are instructions to the server, and are kept.
func (s *Script) Source() string {
	s.assembled.Do(s.assemble)
	return s.source
}

// Digest returns the SHA-1 of the source, in hex.
func (s *Script) Digest() any {
	s.assembled.Do(s.assemble)
	return s.digest
}

func (s *Script) assemble() {
	var b strings.Builder
	size := 0
	for _, part := range s.parts {
		size += len(part)
	}
	b.Grow(size)
	for _, part := range s.parts {
		for line := range strings.Lines(part) {
			words := strings.TrimLeft(line, " \t")
			if !strings.HasPrefix(words, "--") || strings.HasPrefix(words, "--!") {
				b.WriteString(line)
			}
		}
	}
	s.source = b.String()
	sum := sha1.Sum([]byte(s.source))
	s.digest = hex.EncodeToString(sum[:])
}

// A cache records which scripts have to be sent to a server in full. A script is fifty times as long as its digest, so
// commands contain the digest, until the server answers NOSCRIPT. Then it is new, or has restarted, failed over or been flushed,
// and does not have the other scripts either. So from then on the next command with each script contains the script. Only the
// first of these commands costs an additional round trip, and a renewal on a slow link needs one in any case.
//
// When many calls find out at the same time, one of them sends the script. The others send the digest again, behind it,
// and the script only if that is answered NOSCRIPT, too. Nobody waits for another call.
type cache struct {
	noScriptAt atomic.Pointer[clock.Instant] // when the server last answered NOSCRIPT; nil: it never has
	full       sync.Map                      // *Script: the clock.Instant when it was last sent in full
}

// never is the time of a script that was not sent in full.
var never any = clock.Instant{Mono: math.MinInt64}

// lacks reports whether a command with s that is sent now has to contain the script. Of calls at the same time it does
// so for one, which has to send it.
func (k *cache) lacks(s *Script, now clock.Instant) bool {
	noScriptAt := k.noScriptAt.Load()
	if noScriptAt == nil {
		return false
	}
	last, _ := k.full.LoadOrStore(s, never)
	return last.(clock.Instant).Mono < noScriptAt.Mono && k.full.CompareAndSwap(s, last, now)
}

// missed records that a command with the digest of s, sent at the time sent, was answered NOSCRIPT. It reports whether
// the caller has to send the script; else another call has done so since.
func (k *cache) missed(s *Script, sent, now clock.Instant) bool {
	last, _ := k.full.LoadOrStore(s, never)
	if last.(clock.Instant).Mono >= sent.Mono || !k.full.CompareAndSwap(s, last, now) {
		return false
	}
	k.noScriptAt.Store(&now)
	return true
}

// unknownScript reports whether Redis answered that it does not have a script with that digest.
func unknownScript(err error) bool {
	return err != nil && redis.HasErrorPrefix(err, "NOSCRIPT")
}
