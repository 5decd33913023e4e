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
//	<uuid>:<owner>:kept:<number>      a min-hold placeholder; also with :write
//
// The members of the sorted set at the key of a semaphore:
//
//	<uuid>:<number>:<weight>          a permit
//	<uuid>:<number>.kept:<weight>     the min-hold placeholder of that permit
//
// Uuids and owners contain no ':'. So each field can be split again.

// Owner is the owner of a hold: a goroutine, or all goroutines that use a handle made WithOwner.
type Owner struct {
	Goroutine int64  // its number; meaningless if there is a fixed owner
	Fixed     string // of WithOwner; "": the goroutine is the owner
}

// String is the part of a field that identifies o. WithOwner refuses a fixed owner that looks like a
// goroutine, or contains a ':'. So no two owners have the same String.
func (o Owner) String() string {
	if o.Fixed != "" {
		return o.Fixed
	}
	return strconv.FormatInt(o.Goroutine, 10)
}

// placeholderMark is in the field of a min-hold placeholder (WithMinHold). An owner contains no ':',
// so no hold has such a field, and delayed commands of the hold find nothing.
const placeholderMark = ":kept:"

// Placeholder returns the min-hold placeholder that replaces field, whose hold has ended, until then. No two holds of one
// client have the same placeholder, because the min hold of that owner's next hold ends later. So the undo of one
// placeholder does not touch the other.
func Placeholder(field string, until clock.Instant) string {
	owner, writes := strings.CutSuffix(field, WriteSuffix)
	owner += placeholderMark + strconv.FormatInt(int64(until.Mono), 36)
	if writes {
		return AsWriter(owner)
	}
	return owner
}

// Permit returns the owner of one permit: the permit itself, by a number that its client uses once.
func Permit(number uint64, weight int) Owner {
	return Owner{Fixed: strconv.FormatUint(number, 10) + ":" + strconv.Itoa(weight)}
}

// WeightOf returns the weight of a permit, by its member; 0: it is no permit.
func WeightOf(member string) int {
	weight, _ := strconv.Atoi(member[strings.LastIndex(member, ":")+1:])
	return weight
}

// PermitPlaceholder returns the min-hold placeholder that replaces a permit, with the same weight. No two permits have the
// same number, so no two placeholders are equal.
func PermitPlaceholder(member string) string {
	at := strings.LastIndex(member, ":")
	return member[:at] + ".kept" + member[at:]
}

// ReplacedBy returns the field that a placeholder has replaced; false: it is none.
func ReplacedBy(placeholder string) (field string, is bool) {
	if permit, weight, is := strings.Cut(placeholder, ".kept:"); is && WeightOf(placeholder) > 0 {
		return permit + ":" + weight, true
	}
	owner, writes := strings.CutSuffix(placeholder, WriteSuffix)
	at := strings.LastIndex(owner, placeholderMark)
	if at < 0 {
		return "", false // such as the write field of an owner called "kept"
	}
	if _, err := strconv.ParseInt(owner[at+len(placeholderMark):], 36, 64); err != nil {
		return "", false
	}
	if writes {
		return AsWriter(owner[:at]), true
	}
	return owner[:at], true
}

// AsReader returns the read field of the owner of field, which may be of either side of a read-write lock.
func AsReader(field string) string { return strings.TrimSuffix(field, WriteSuffix) }

// AsWriter returns the write field of that owner.
func AsWriter(field string) string { return AsReader(field) + WriteSuffix }

// Who returns the owner as it is written in errors.
func (o Owner) Who() string {
	if o.Fixed != "" {
		return fmt.Sprintf("owner %q", o.Fixed)
	}
	return fmt.Sprintf("goroutine %d", o.Goroutine)
}

// OwnerNamed returns the owner of a field. An owner that consists only of digits is the number of a goroutine.
func OwnerNamed(field string) Owner {
	_, name, _ := strings.Cut(strings.TrimSuffix(field, WriteSuffix), ":")
	if n, err := strconv.ParseInt(name, 10, 64); err == nil && strings.Trim(name, "0123456789") == "" {
		return Owner{Goroutine: n}
	}
	return Owner{Fixed: name}
}

// Field returns the name on Redis of o, of the client with that identity, as a holder of t.
func (t *Set) Field(identity string, o Owner) string {
	if t.Side == Writing {
		return identity + ":" + o.String() + WriteSuffix
	}
	return identity + ":" + o.String()
}
