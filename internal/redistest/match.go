package redistest

import (
	"crypto/sha1"
	"encoding/hex"
	"slices"
	"strings"
)

// Match chooses commands. It must be quick and must not use the relay.
type Match func(Command) bool

// And chooses what both choose.
func (m Match) And(other Match) Match {
	return func(c Command) bool { return m(c) && other(c) }
}

// Any chooses every command.
var Any Match = func(Command) bool { return true }

// Named chooses commands by name, whatever the case; of several, any.
func Named(names ...string) Match {
	return func(c Command) bool {
		return slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, c.Arg(0)) })
	}
}

// With chooses commands that have arg, a key for instance, among their arguments.
func With(arg string) Match {
	return func(c Command) bool { return c.Has(arg) }
}

// Scripts chooses every run of a script: EVAL, EVALSHA and their read-only forms.
var Scripts = Named("EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO")

// Script chooses the runs of the script with this source, by EVAL or by EVALSHA. A
// client's first EVALSHA of a script that the server does not know is one too, though
// refused: load scripts first where a rule must hit one that runs.
func Script(source string) Match {
	sum := sha1.Sum([]byte(source))
	sha := hex.EncodeToString(sum[:])
	return func(c Command) bool {
		return Scripts(c) && (c.Arg(1) == source || strings.EqualFold(c.Arg(1), sha))
	}
}
