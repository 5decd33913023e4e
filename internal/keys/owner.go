package keys

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/relock-go/relock/internal/clock"
)

// The fields of the hash at the key of a lock:
//
//	<uuid>:<owner>                    a hold of a lock with one side, or of a reader
//	<uuid>:<owner>:write              a hold of a writer
//	<uuid>:<owner>:kept:<number>      a lock that is kept though its hold has ended; also with :write
//
// No uuid and no owner has a ':' in it. So each field can be taken apart again.

// Owner is who holds: a goroutine, or all goroutines that use a handle made WithOwner.
type Owner struct {
	Goroutine int64  // its number; meaningless if there is a fixed owner
	Fixed     string // of WithOwner; "": the goroutine is the owner
}

// String is the part of a field that names o. WithOwner refuses a fixed owner that could be taken for a
// goroutine, or has a ':' in it: so no two owners have the same.
func (o Owner) String() string {
	if o.Fixed != "" {
		return o.Fixed
	}
	return strconv.FormatInt(o.Goroutine, 10)
}

// keptMark is in the field of a lock that is kept after its hold has ended (WithMinHold). An owner has no ':'
// in it, so no hold has such a field, and late commands of the hold find nothing.
const keptMark = ":kept:"

// Kept is the field of a lock that is kept until then for field, whose hold has ended. No two holds of one
// client are kept by the same field: the next hold of that owner is kept until later. So an undo of what is
// kept for the one does not touch the other.
func Kept(field string, until clock.Instant) string {
	owner, writes := strings.CutSuffix(field, WriteSuffix)
	owner += keptMark + strconv.FormatInt(int64(until.Mono), 36)
	if writes {
		return AsWriter(owner)
	}
	return owner
}

// KeptFor returns the field for which the lock is kept; false: kept is not of a lock that is kept.
func KeptFor(kept string) (field string, is bool) {
	owner, writes := strings.CutSuffix(kept, WriteSuffix)
	at := strings.LastIndex(owner, keptMark)
	if at < 0 {
		return "", false // as of an owner called "kept" that writes
	}
	if _, err := strconv.ParseInt(owner[at+len(keptMark):], 36, 64); err != nil {
		return "", false
	}
	if writes {
		return AsWriter(owner[:at]), true
	}
	return owner[:at], true
}

// AsReader is the field by which the owner of field, of either side of a read-write lock, reads.
func AsReader(field string) string { return strings.TrimSuffix(field, WriteSuffix) }

// AsWriter is the field by which it writes.
func AsWriter(field string) string { return AsReader(field) + WriteSuffix }

// Who is the owner in the words of errors.
func (o Owner) Who() string {
	if o.Fixed != "" {
		return fmt.Sprintf("owner %q", o.Fixed)
	}
	return fmt.Sprintf("goroutine %d", o.Goroutine)
}

// OwnerNamed is the owner that a field names. What consists of digits alone is the number of a goroutine.
func OwnerNamed(field string) Owner {
	_, name, _ := strings.Cut(strings.TrimSuffix(field, WriteSuffix), ":")
	if n, err := strconv.ParseInt(name, 10, 64); err == nil && strings.Trim(name, "0123456789") == "" {
		return Owner{Goroutine: n}
	}
	return Owner{Fixed: name}
}

// Field is the name on Redis by which o, of the client with that identity, holds t.
func (t *Set) Field(identity string, o Owner) string {
	if t.Side == Writing {
		return identity + ":" + o.String() + WriteSuffix
	}
	return identity + ":" + o.String()
}
