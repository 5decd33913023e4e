package keys

import (
	"fmt"
	"strconv"
	"strings"
)

// Owner is who holds: a goroutine, or all that use a handle made WithOwner.
type Owner struct {
	Goroutine int64
	Fixed     string
}

// String is the part of a field that names o.
func (o Owner) String() string {
	if o.Fixed != "" {
		return o.Fixed
	}
	return strconv.FormatInt(o.Goroutine, 10)
}

// Who is the owner in the words of errors.
func (o Owner) Who() string {
	if o.Fixed != "" {
		return fmt.Sprintf("owner %q", o.Fixed)
	}
	return fmt.Sprintf("goroutine %d", o.Goroutine)
}

// OwnerNamed is the owner that a field names.
func OwnerNamed(field string) Owner {
	_, name, _ := strings.Cut(strings.TrimSuffix(field, WriteSuffix), ":")
	if n, err := strconv.ParseInt(name, 10, 64); err == nil && strings.Trim(name, "0123456789") == "" {
		return Owner{Goroutine: n}
	}
	return Owner{Fixed: name}
}

// Field is the name on Redis under which o, of the client with that identity, holds t.
func (t *Set) Field(identity string, o Owner) string {
	if t.Side == Writing {
		return identity + ":" + o.String() + WriteSuffix
	}
	return identity + ":" + o.String()
}
