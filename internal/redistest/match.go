package redistest

import (
	"crypto/sha1"
	"encoding/hex"
	"slices"
	"strings"
)

// Match reports whether a command matches. It must be fast, and must not use the relay.
type Match func(Command) bool

// And matches commands that both match.
func (m Match) And(other Match) Match {
	return func(c Command) bool { return m(c) && other(c) }
}

// Any matches every command.
var Any Match = func(Command) bool { return true }

// Named matches commands with any of the names, in any case.
func Named(names ...string) Match {
	return func(c Command) bool {
		return slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, c.Arg(0)) })
	}
}

// With matches commands that have arg, such as a key, among their arguments.
func With(arg string) Match {
	return func(c Command) bool { return c.Has(arg) }
}

// Scripts matches every run of a script: EVAL, EVALSHA and their read-only forms.
var Scripts = Named("EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO")

// Script matches the runs of the script with this source, by EVAL or EVALSHA. This includes an EVALSHA that the server
// refuses because the script is not loaded. If a rule must apply to a run, load the scripts first.
func Script(source string) Match {
	sum := sha1.Sum([]byte(source))
	sha := hex.EncodeToString(sum[:])
	return func(c Command) bool {
		return Scripts(c) && (c.Arg(1) == source || strings.EqualFold(c.Arg(1), sha))
	}
}
