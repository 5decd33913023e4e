package cli

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/relock-go/relock/internal/keys"
)

// The variables that a command finds.
const (
	nameVar  = "RELOCK_NAME"
	tokenVar = "RELOCK_TOKEN"
	// holdersVar has the owners, as on Redis and with spaces in between, of all locks around the command: a relock run in
	// it would wait for ever for one of those.
	holdersVar = "RELOCK_HOLDERS"
)

// environ is env as the command gets it.
func (r *runner) environ(env []string) []string {
	all := slices.DeleteFunc(slices.Clone(env), func(entry string) bool { // of a relock that runs us
		key, _, _ := strings.Cut(entry, "=")
		return key == nameVar || key == tokenVar || key == holdersVar
	})
	owner, _ := r.owner.Load().(string)
	all = append(all, nameVar+"="+r.name, holdersVar+"="+strings.TrimSpace(os.Getenv(holdersVar)+" "+keys.AsReader(owner)))
	if token := r.lock.token(); token != 0 {
		all = append(all, tokenVar+"="+strconv.FormatInt(token, 10))
	}
	return all
}

// heldAround returns an error if the lock, or as many permits as --slots, is held around this relock, by ones whose commands
// have started it; nil: it is not, or that is not known. It asks Redis: the same name on another Redis is another lock, and
// readers may share one.
func (r *runner) heldAround(ctx context.Context) error {
	around := strings.Fields(os.Getenv(holdersVar))
	if len(around) == 0 {
		return nil
	}
	l, err := r.look(ctx)
	if err != nil {
		return nil
	}
	held := 0 // around this relock
	for _, h := range l.Holders {
		if h.MinHold || !slices.Contains(around, h.Owner) {
			continue
		}
		if held++; held >= r.flags.slots {
			return &exit{codeUsage, fmt.Errorf("%q is held by %s, and this command runs under that hold: it would wait for itself forever", r.name, who(h.Owner, h.Client))}
		}
	}
	return nil
}
