package redisexec

import (
	"errors"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/guard"
)

// Verdict is what the error of one copy of a command says about it.
type Verdict struct {
	Answered    bool // no error
	NotExecuted bool // surely: Redis refused it before its first write, or it was never sent
	Resend      bool // another copy may fare better
	Permanent   bool // no later call will fare better either, until somebody changes something
}

var (
	Fine      = Verdict{Answered: true}
	Transient = Verdict{NotExecuted: true, Resend: true}
	Refused   = Verdict{NotExecuted: true}
	Forbidden = Verdict{NotExecuted: true, Permanent: true}
	Unknown   = Verdict{Resend: true}
	// Halfway is the error of a script that ran: what it wrote before is not rolled back.
	Halfway = Verdict{}
)

// serverErrors are the error replies, by their first words, that say that a script was not
// executed: Redis refuses the connection, the script itself, or its first write. One that
// is met inside of a script, after a write maybe, is none of them.
var serverErrors = []struct {
	words string
	Verdict
}{
	{"LOADING", Transient},
	{"MASTERDOWN", Transient},
	{"CLUSTERDOWN", Transient},
	{"TRYAGAIN", Transient},
	{"NOREPLICAS", Transient},
	{"BUSY", Transient},
	{"READONLY", Transient},
	{"NOSCRIPT", Transient},
	{"max number of clients", Transient},
	{"OOM", Refused},
	{"MISCONF", Refused},
	{"MOVED", Refused},
	{"ASK", Refused},
	{"NOAUTH", Forbidden},
	{"WRONGPASS", Forbidden},
	{"NOPERM ACL failure in script:", Halfway}, // since version 7.2; an ERR before
	{"NOPERM", Forbidden},
	{"DENIED", Forbidden}, // protected mode
	{"CROSSSLOT", Forbidden},
	{"unknown command", Forbidden},
}

// Judge classifies the error of one copy of a command.
func Judge(err error) Verdict {
	if err == nil { // most are: what errors.As writes to is allocated even if it is not called
		return Fine
	}
	var server redis.Error
	var network *net.OpError
	var panicked *guard.Panic
	switch {
	case errors.Is(err, redis.Nil):
		return Fine
	case errors.As(err, &panicked):
		return Halfway // and it would again
	case errors.Is(err, redis.ErrClosed):
		return Forbidden
	case errors.Is(err, errNotSent):
		return Transient
	case errors.As(err, &server):
		return JudgeReply(server.Error())
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted),
		errors.Is(err, redis.ErrAutoPipelineTimeout), errors.Is(err, redis.ErrAutoPipelineQueueFull):
		return Transient
	case errors.As(err, &network) && network.Op == "dial":
		return Transient
	default:
		return Unknown
	}
}

// elsewhere is what Redis says to a script that touches a key which is not on its node, as is so while
// a slot moves. The words before it, and after, differ by version.
const elsewhere = "script attempted to access a non local key in a cluster node"

// isElsewhere reports whether err is the error of a script that met such a key.
func isElsewhere(err error) bool {
	if err == nil {
		return false
	}
	var server redis.Error
	return errors.As(err, &server) && strings.Contains(strings.ToLower(server.Error()), elsewhere)
}

// isTryAgain reports whether Redis refused a command because not all of its keys are on one node.
func isTryAgain(err error) bool { return err != nil && redis.HasErrorPrefix(err, "TRYAGAIN") }

// SlotMoves reports whether err says that the slot of the keys is on the move.
func SlotMoves(err error) bool { return isTryAgain(err) || isElsewhere(err) }

// judge classifies the error of one copy of s.
func (s *Script) judge(err error) Verdict {
	v := Judge(err)
	if v == Halfway && s.LooksFirst && isElsewhere(err) {
		return Transient
	}
	return v
}

// unsent reports whether err says that there was no connection to send a command on.
func unsent(err error) bool {
	if !Judge(err).NotExecuted { // most are not: what errors.As writes to is allocated
		return false
	}
	return !Replied(err)
}

// Replied reports whether err is Redis' own.
func Replied(err error) bool {
	var server redis.Error
	return errors.As(err, &server)
}

// JudgeReply classifies an error reply.
func JudgeReply(message string) Verdict {
	message = strings.TrimPrefix(message, "ERR ")
	// Before version 7, Redis wraps what a script's first write is refused with:
	// "Error running script (call to f_…): @user_script:1: -READONLY You can't write…".
	if strings.HasPrefix(message, "Error running script") {
		if _, inner, found := strings.Cut(message, ": -"); found {
			message = inner
		}
	}
	for _, e := range serverErrors {
		if strings.HasPrefix(message+" ", e.words+" ") {
			return e.Verdict
		}
	}
	return Halfway
}

// ForGood reports whether err says that Redis will hear nothing more: the application has closed
// its client.
func ForGood(err error) bool { return errors.Is(err, redis.ErrClosed) }
