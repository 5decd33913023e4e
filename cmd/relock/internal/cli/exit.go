package cli

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/cmd/relock/internal/hint"
	"github.com/relock-go/relock/cmd/relock/internal/look"
	"github.com/relock-go/relock/internal/lockerr"
)

// Codes are the exit codes: those of sysexits.h, and of timeout(1) and the shell.
const (
	codeFine        = 0
	codeFailed      = 1  // of force: nothing to force; of doctor: warnings
	codeBroken      = 2  // of doctor
	codeUsage       = 64 // EX_USAGE
	codeUnavailable = 69 // EX_UNAVAILABLE
	codeSoftware    = 70 // EX_SOFTWARE
	codeBusy        = 75 // EX_TEMPFAIL
	codeForbidden   = 77 // EX_NOPERM
	codeLost        = 124
	codeKilled      = 137
)

// codesText says them, in the words of --help.
const codesText = `    the command's own    it ran, and the lock was held all the time
    128+N                signal N ended the command, or ended relock while it waited
    75                   another owner holds the lock, or no slot is free (-n), or this is so until the end of
                         -w; -E changes this code
    124                  the lock was lost, or --max-hold was over: the command got SIGTERM, and ended
    137                  the same, but the command had to be killed (SIGKILL)
    126, 127             the command cannot be run; there is no such command
    64                   wrong usage: a bad flag or argument, a name that is used for something else, a lock that is
                         held around this relock
    69                   Redis cannot be reached, or cannot serve, also at the end of -w
    77                   this user of Redis has no permission`

// exit is an error with a code of its own.
type exit struct {
	code int
	err  error // nil: nothing is said
}

// These say that a SIGINT has ended the wait or the command. A script around this process ends, too, only if it gets the SIGINT, and
// this process dies of it.
var (
	errInterrupted        = errors.New(os.Interrupt.String())     // this process got it: by Ctrl-C the script did, too
	errCommandInterrupted = errors.New("the command interrupted") // the command alone got it, on the terminal that was lent to it
)

func (e *exit) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exit) Unwrap() error { return e.err }

// usage is an error of who called.
func usage(format string, args ...any) error {
	return &exit{codeUsage, fmt.Errorf(format, args...)}
}

// codeOf is the exit code for err.
func codeOf(err error) int {
	var own *exit
	var server redis.Error
	switch {
	case err == nil:
		return codeFine
	case errors.As(err, &own):
		return own.code
	case errors.Is(err, relock.ErrTimeout):
		return codeBusy
	case errors.Is(err, relock.ErrLost):
		return codeLost
	case errors.Is(err, relock.ErrInvalidName), errors.Is(err, relock.ErrInvalidOption), errors.Is(err, relock.ErrUnsupported),
		errors.Is(err, look.ErrPart), errors.Is(err, look.ErrPattern):
		return codeUsage
	case errors.As(err, &server) && forbidden(server.Error()):
		return codeForbidden
	default:
		return codeUnavailable
	}
}

// unanswered reports whether the error of a wait says that Redis did not answer at its end, or not as a lock needs it.
func unanswered(err error) bool {
	var network *net.OpError
	var server redis.Error
	return errors.Is(err, lockerr.ErrNoAnswer) || errors.Is(err, io.EOF) || errors.As(err, &network) || errors.As(err, &server)
}

// forbidden reports whether Redis' error text says that this user may not do it. That of a script has the
// words inside it.
func forbidden(text string) bool {
	for _, words := range []string{"NOPERM", "NOAUTH", "WRONGPASS", "DENIED"} {
		if strings.HasPrefix(text, words) {
			return true
		}
	}
	return strings.Contains(text, "ACL failure in script") || strings.Contains(text, "can't run this command") ||
		strings.Contains(text, "Protocol error: unauthenticated")
}

// advice says what can be done about err; "" if there is nothing to say.
func advice(err error) string {
	if errors.Is(err, relock.ErrTimeout) || errors.Is(err, relock.ErrLost) {
		return ""
	}
	return hint.For(err)
}
