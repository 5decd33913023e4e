package protocol

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redisexec"
)

// reply reads the answer of a script. A server, a proxy or another program's script may answer anything, so an unexpected
// reply becomes an error, never a panic. A call that failed has an empty reply. To read it is harmless, because the outcome
// has the error.
type reply struct {
	values []any             // of a list
	value  any               // all of it
	bare   bool              // it is not a list
	out    redisexec.Outcome // of the call; its error may be a refusal, or the first unexpected element
}

// at returns element i, or nil if there is none. A reply that is not a list counts as a list of one.
func (r *reply) at(i int) any {
	switch {
	case r.bare && i == 0:
		return r.value
	case i < len(r.values):
		return r.values[i]
	}
	return nil
}

// understood returns the answer that was read from r, and the outcome of the call; no answer after an error.
func understood[T any](answer T, r *reply) (T, redisexec.Outcome) {
	if r.out.Err != nil {
		var none T
		answer = none
	}
	return answer, r.out
}

// surprise records that the reply is not one of the script's. An unknown script may have done anything, and another copy
// would get the same answer.
func (r *reply) surprise(format string, args ...any) {
	if r.out.Err == nil {
		r.out.Err = fmt.Errorf("unexpected reply %s: %s", brief(r), fmt.Sprintf(format, args...))
		r.out.Ambiguous, r.out.Permanent = true, true
	}
}

// brief prints a reply, or as much of it as an error should contain: another program's script may have answered with
// anything, of any length. No script of ours answers with a list within a list.
func brief(r *reply) string {
	const most = 200
	values := slices.Clone(r.values[:min(len(r.values), most)])
	if r.bare { // printed as a list of one, which is how at reads it
		values = []any{r.value}
	}
	for i, v := range values {
		switch v := v.(type) {
		case string:
			values[i] = v[:min(len(v), most)]
		case []any:
			values[i] = "[...]"
		}
	}
	text := fmt.Sprint(values)
	if len(text) > most {
		text = text[:most] + "..."
	}
	return strings.ToValidUTF8(text, "")
}

// The functions below read one element each. If the element is unexpected, they record that, and return a harmless
// value: understood discards the answer.

// integer returns element i.
func (r *reply) integer(i int) int64 {
	if n, ok := r.at(i).(int64); ok {
		return n
	}
	r.surprise("no integer at %d", i)
	return 0
}

// ttl returns element i, a PTTL in milliseconds. If a foreign program has set one that no duration can hold,
// it returns the longest duration.
func (r *reply) ttl(i int) time.Duration {
	ms := r.integer(i)
	if ms < -2 {
		r.surprise("no PTTL at %d", i)
		return 0
	}
	return time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

// position returns element i, the position of one of t's keys, counted from 1 as in Lua.
func (r *reply) position(i int, t *keys.Set) int {
	n := r.integer(i) - 1
	if n < 0 || n >= int64(len(t.Keys)) {
		r.surprise("no key at %d", i)
		return 0
	}
	return int(n)
}

// text returns element i.
func (r *reply) text(i int) string {
	if s, ok := r.at(i).(string); ok {
		return s
	}
	r.surprise("no text at %d", i)
	return ""
}

// number returns element i, a text of digits, or 0 if it is another text: a
// foreign program may have written it.
func (r *reply) number(i int) int64 {
	n, err := strconv.ParseInt(r.text(i), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// flag returns a reply that is 1 or 0.
func (r *reply) flag() bool {
	n := r.integer(0)
	if n != 0 && n != 1 {
		r.surprise("neither 0 nor 1")
	}
	return n == 1
}

// lost returns the positions of those of n holds that a script found lost. The script returns them in order.
func (r *reply) lost(n int) []int {
	if r.bare {
		if r.integer(0) != int64(n) {
			r.surprise("not %d", n)
		}
		return nil
	}
	lost := make([]int, 0, min(n, len(r.values)))
	last := 0
	for i := range r.values {
		at := r.integer(i)
		// If a position is out of order, or repeated, it could belong to another hold, which
		// would be lost without a reason.
		if at <= int64(last) || at > int64(n) {
			r.surprise("no hold at %d", i)
			return nil
		}
		last = int(at)
		lost = append(lost, last)
	}
	if last == 0 {
		r.surprise("no hold is lost")
	}
	return lost
}

// grant returns the grant of a script that acquires a free lock, or returns the holder. With token, the script also
// returns a token, which may be 0.
func (r *reply) grant(t *keys.Set, token bool) Grant {
	switch status := r.integer(0); status {
	case 1:
		return r.granted(token)
	case 0:
		// A fifth element means, for a read-write lock, that a waiting writer has claimed it, and for a lock with a line,
		// that the field has an entry there.
		//
		// On a server whose time passes within a script, the hold may have ended just now.
		left := r.ttl(1)
		if left == -2*time.Millisecond {
			left = 0
		}
		more := len(r.values) > 4
		return Grant{Key: r.position(2, t), TTL: left, Holder: r.text(3), Claimed: more && t.RW != nil, Waits: more && t.RW == nil}
	default:
		r.refuse(status, t)
		return Grant{}
	}
}

// grantOrLost returns the grant of a script that sets counts and perhaps creates a token, or finds that the lock is lost.
func (r *reply) grantOrLost(t *keys.Set, token bool) Grant {
	switch status := r.integer(0); status {
	case 1:
		return r.granted(token)
	case 0:
		return Grant{}
	default:
		r.refuse(status, t)
		return Grant{}
	}
}

// granted reads a token, or none if the script returns only a success, because a list takes Redis a fifth of the time of
// a short script.
func (r *reply) granted(token bool) Grant {
	if r.bare && !token {
		return Grant{Held: true}
	}
	return Grant{Held: true, Token: r.integer(1)}
}

// reads returns the answer of a script to a reader that asked for lease. A number means that it reads,
// and completes the outcome by the rest of the lock's lease. grantOf reads a list.
func (r *reply) reads(t *keys.Set, lease time.Duration, grantOf func(*keys.Set, bool) Grant) (Grant, redisexec.Outcome) {
	if !r.bare {
		return understood(grantOf(t, false), r)
	}
	// The rest of the lock's lease before this command. If it is less than asked for, another program shortens the lease:
	// the hold then renews sooner (see lease.Lease.Note).
	found := r.ttl(0)
	switch {
	case found <= 0:
		r.surprise("no lease")
	case found < lease:
		r.out.LeaseLeft = found
	}
	return understood(Grant{Held: true}, r)
}

// released reads the reply of a script that releases a lock: a number if the lock had the field, and otherwise a list
// that begins with 0. Both contain the number of processes that received the wake-ups.
func (r *reply) released() Released {
	if r.bare {
		return Released{Ours: true, Receivers: r.receivers(0)}
	}
	if r.integer(0) != 0 {
		r.surprise("not 0")
	}
	return Released{Receivers: r.receivers(1)}
}

// releasedInLine is released for a lock with a line: a text means that the first in line got the lock, and contains
// the number of receivers.
func (r *reply) releasedInLine() Released {
	text, granted := r.value.(string)
	if !granted {
		return r.released()
	}
	receivers, err := strconv.Atoi(text)
	if err != nil || receivers < -1 || receivers > math.MaxInt32 {
		r.surprise("no number of processes")
	}
	return Released{Ours: true, Granted: true, Receivers: receivers}
}

// receivers returns element i, the number of processes that received a message; -1 if the
// server refused to count them.
func (r *reply) receivers(i int) int {
	n := r.integer(i)
	if n < -1 || n > math.MaxInt32 {
		r.surprise("no number of processes at %d", i)
		return 0
	}
	return int(n)
}

// refuse reads a status that contains why key i of t cannot be locked. The script has changed nothing then. The
// answer stays the same until another program removes the obstacle: so the refusal is permanent.
func (r *reply) refuse(status int64, t *keys.Set) {
	// A counter has a position of its own: there may be more of them than keys (see keys.Set.FencedWith).
	i, n := r.integer(1)-1, len(t.Keys)
	if status == -3 {
		n = len(t.Counters)
	}
	if i < 0 || i >= int64(n) {
		r.surprise("status %d of no key", status)
		return
	}
	why := whyRefused(status, t, int(i))
	if why == nil {
		r.surprise("status %d", status)
		return
	}
	if r.out.Err == nil {
		r.out.Err, r.out.Permanent, r.out.Refused = why, true, true
	}
}

// errReadsToo reports that a writer cannot be followed by another writer at once, because it reads on, and others may
// read with it. So the lock is released instead.
var errReadsToo = errors.New("the owner also holds the read side")

// whyRefused returns the meaning of a status for key i of t; nil if there is
// no such status. Some statuses belong to the scripts of one kind of lock only: from another kind they are unexpected.
func whyRefused(status int64, t *keys.Set, i int) error {
	switch {
	case status == -1 && t.Side == keys.Permits:
		return fmt.Errorf("%w: key %q is not a semaphore: it is a lock, has another type, or is a sorted set of another program; use another name", lockerr.ErrInvalidName, t.Keys[i])
	case status == -1:
		return fmt.Errorf("%w: key %q is not a lock: it has another type, as a semaphore has, or is a hash of another program; use another name", lockerr.ErrInvalidName, t.Keys[i])
	case status == -2:
		return fmt.Errorf("%w: key %q is a read-write lock: use RWMutex, or another name", lockerr.ErrInvalidName, t.Keys[i])
	case status == -3:
		return fmt.Errorf("%w: key %q is for the fencing token, but contains something else: use another name", lockerr.ErrInvalidName, t.Counters[i])
	case status == -5 && t.RW != nil:
		return fmt.Errorf("%w: key %q is not a read-write lock, but another kind of lock or a hash of another program: use another name", lockerr.ErrInvalidName, t.Keys[i])
	case status == -6 && t.RW != nil:
		return errReadsToo
	case status == -4 && t.Line != nil:
		return fmt.Errorf("%w: keys %q and %q are for the line of waiters, but one contains something else: use another name",
			lockerr.ErrInvalidName, t.Line[2], t.Line[3])
	}
	return nil
}
