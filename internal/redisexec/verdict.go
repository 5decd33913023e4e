package redisexec

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/goroutine"
)

// verdict is the meaning of the error of one copy of a command. If it is unknown whether the
// copy was executed, the verdict is that it may have been: then a name too many is retired. The opposite mistake
// would let a delayed copy change a later hold.
type verdict struct {
	answered    bool // no error
	notExecuted bool // certainly: Redis refused it before its first write, or it was never sent
	resend      bool // another copy may succeed
	permanent   bool // no later call can succeed until something is changed
}

// The verdicts. transient ends soon, as a failover does. refused may end, but later: another copy does
// not help a server without memory. forbidden lasts until an operator, or the application, changes something.
// unknown is a failure of the network: the copy may have been sent, and executed.
var (
	fine      = verdict{answered: true}
	transient = verdict{notExecuted: true, resend: true}
	refused   = verdict{notExecuted: true}
	forbidden = verdict{notExecuted: true, permanent: true}
	unknown   = verdict{resend: true}
	// halfway is the error of a script that ran: its earlier writes are not rolled back.
	halfway = verdict{}
)

// serverErrors are the error replies, by their first words, that mean that a script was not
// executed: Redis refuses the connection, the script itself, or its first write. An error that
// occurs within a script, perhaps after a write, is not among them. The first match counts, so a longer
// entry comes before its own beginning.
var serverErrors = []struct {
	words string
	verdict
}{
	{"LOADING", transient},
	{"MASTERDOWN", transient},
	{"CLUSTERDOWN", transient},
	{"TRYAGAIN", transient},
	{"NOREPLICAS", transient},
	{"BUSY", transient},
	{"READONLY", transient},
	{"NOSCRIPT", transient},
	{"max number of clients", transient},
	{"OOM", refused},
	{"MISCONF", refused},
	{"MOVED", refused},
	{"ASK", refused},
	{"NOAUTH", forbidden},
	{"WRONGPASS", forbidden},
	{"NOPERM ACL failure in script:", halfway}, // since version 7.2; an ERR before
	{"NOPERM", forbidden},
	{"DENIED", forbidden}, // protected mode
	{"CROSSSLOT", forbidden},
	{"Protocol error: unauthenticated", forbidden}, // of a command with more than ten words
	{"unknown command", forbidden},

	// These refuse what a client says first on a connection, by its options: no script fails so.
	{"DB index is out of range", forbidden},
	{"invalid DB index", forbidden},
	{"SELECT is not allowed in cluster mode", forbidden},
	{"AUTH <password> called without any password configured", forbidden},
	{"Client sent AUTH, but no password is set", forbidden},
	{"NOPROTO", forbidden},
	{"This instance has cluster support disabled", forbidden},
}

// judge classifies the error of one copy of a command.
func judge(err error) verdict {
	if err == nil { // most are: what errors.As writes to is allocated even if it is not called
		return fine
	}
	var server redis.Error
	var network *net.OpError
	var panicked *goroutine.Panic
	switch {
	case errors.As(err, &panicked):
		return halfway // and it would again
	case errors.Is(err, redis.ErrClosed):
		return forbidden
	case errors.Is(err, errNotSent), errors.Is(err, errUnsettled):
		return transient
	case errors.As(err, &server):
		return judgeReply(server.Error())
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return transient
	case errors.As(err, &network) && network.Op == "dial": // there was no connection to send it on
		return transient
	default: // as a time-out, or a connection that broke: nothing says whether before or after the execution
		return unknown
	}
}

// errNoServer reports that the client found no server for a command.
var errNoServer = errors.New("unexpected nil reply: the Redis client may have found no server (does Sentinel monitor the master?)")

// noNil returns err without redis.Nil in it. No script of ours returns nil, so it is a failure of the client: Sentinel
// has no such master, or a Cluster has unknown endpoints. Callers would take redis.Nil for an answer.
func noNil(err error) error {
	if errors.Is(err, redis.Nil) {
		return fmt.Errorf("%w: %v", errNoServer, err) // not wrapped
	}
	return err
}

// elsewhere is in the error of a script that touches a key which is not on its node, while
// a slot moves: one key, or, from Redis 8 and Valkey 8 on, some of several. The words around it
// differ by version.
var elsewhere = []string{
	"attempted to access a non local key in a cluster node",
	"in script because undeclared keys were accessed during rehashing of the slot",
}

// isElsewhere reports whether err is the error of a script that met such a key.
func isElsewhere(err error) bool {
	if err == nil {
		return false
	}
	var server redis.Error
	if !errors.As(err, &server) {
		return false
	}
	reply := strings.ToLower(server.Error())
	return slices.ContainsFunc(elsewhere, func(words string) bool { return strings.Contains(reply, words) })
}

// isTryAgain reports whether Redis refused a command because not all of its keys are on one node.
func isTryAgain(err error) bool { return err != nil && redis.HasErrorPrefix(err, "TRYAGAIN") }

// isRedirect reports whether a node of a Cluster refused a command because another one serves its slot.
func isRedirect(err error) bool {
	return err != nil && (redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK"))
}

// lacksKeys reports whether Redis refused a command, before its first write, because of some of its keys.
// An undo needs all keys on which its name may have something, but not the keys that it must not touch.
func lacksKeys(err error, undoes bool) bool {
	return isTryAgain(err) && !undoes || err != nil && redis.HasErrorPrefix(err, "NOPERM") && judge(err) == forbidden
}

// SlotMoves reports whether err means that the slot of the keys is moving.
func SlotMoves(err error) bool {
	return isTryAgain(err) || isElsewhere(err) || errors.Is(err, errUnsettled)
}

// judge classifies the error of one copy of s. A script that looks first has written nothing when it meets a key
// that is elsewhere. Any other may have.
func (s *Script) judge(err error) verdict {
	v := judge(err)
	if v == halfway && s.LooksFirst && isElsewhere(err) {
		return transient
	}
	return v
}

// IsBarred reports whether err means that Redis does not let the client in, or denies its user a permission.
func IsBarred(err error) bool {
	return err != nil && slices.ContainsFunc(bars, func(words string) bool { return redis.HasErrorPrefix(err, words) })
}

var bars = []string{"NOAUTH", "WRONGPASS", "NOPERM", "Protocol error: unauthenticated"}

// unsent reports whether err means that there was no connection to send a command on.
func unsent(err error) bool {
	if !judge(err).notExecuted { // most are not: what errors.As writes to is allocated
		return false
	}
	return !Replied(err)
}

// isTimeout reports whether err is the time-out of a connection on which nothing arrived.
func isTimeout(err error) bool {
	if err == nil { // most are: what errors.As writes to is allocated even if it is not called
		return false
	}
	var network net.Error
	return errors.As(err, &network) && network.Timeout()
}

// Replied reports whether err is an error reply of Redis.
func Replied(err error) bool {
	var server redis.Error
	return errors.As(err, &server)
}

// judgeReply classifies an error reply.
func judgeReply(message string) verdict {
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
			return e.verdict
		}
	}
	return halfway
}

// ForGood reports whether err means that no later command can be sent, because the application has closed
// its client.
func ForGood(err error) bool { return errors.Is(err, redis.ErrClosed) }
