package redistest

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"
)

// DialTimedOut returns the error of a dialer after its time-out. For errors.Is it is also the end of a context.
func DialTimedOut(tb testing.TB) error {
	tb.Helper()
	_, err := (&net.Dialer{Deadline: time.Now().Add(-time.Second)}).Dial("tcp", "127.0.0.1:1")
	if !errors.Is(err, context.DeadlineExceeded) {
		tb.Fatalf("not a dial that timed out: %v", err)
	}
	return err
}

// Meaning is the meaning of the error of a command.
type Meaning struct {
	NotExecuted bool // it is certain that it was not executed
	Resend      bool // another copy may succeed
	Permanent   bool // no later copy will succeed, unless the cause is removed
}

// The meanings of errors.
var (
	Transient = Meaning{NotExecuted: true, Resend: true}
	Refused   = Meaning{NotExecuted: true}
	Forbidden = Meaning{NotExecuted: true, Permanent: true}
	Unknown   = Meaning{Resend: true}
	// Halfway is the error of a script that ran. Its earlier writes are not rolled back.
	Halfway = Meaning{}
)

// wrapped is how Redis before version 7 words the error of a command in a script.
func wrapped(message string) string {
	return "ERR Error running script (call to f_6b1bf486c81ceb7edf3c093f4c48582e38c0e791): @user_script:1: @user_script: 1: -" + message
}

// ErrorReplies are error replies of Redis, and their meanings for a script.
var ErrorReplies = map[string]Meaning{
	"LOADING Redis is loading the dataset in memory":                                               Transient,
	"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.":             Transient,
	"CLUSTERDOWN The cluster is down":                                                              Transient,
	"CLUSTERDOWN Hash slot not served":                                                             Transient,
	"TRYAGAIN Multiple keys request during rehashing of slot":                                      Transient,
	"NOREPLICAS Not enough good replicas to write.":                                                Transient,
	"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.":       Transient,
	"READONLY You can't write against a read only replica.":                                        Transient,
	"READONLY You can't write against a read only replica. script: 3f, on @user_script:1.":         Transient,
	"NOSCRIPT No matching script. Please use EVAL.":                                                Transient,
	"ERR max number of clients reached":                                                            Transient,
	"ERR max number of clients + cluster connections reached":                                      Transient,
	"OOM command not allowed when used memory > 'maxmemory'.":                                      Refused,
	"OOM command not allowed when used memory > 'maxmemory'. script: 3f, on @user_script:1.":       Refused,
	"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist":      Refused,
	"MOVED 3999 127.0.0.1:6381":                                                                    Refused,
	"ASK 3999 127.0.0.1:6381":                                                                      Refused,
	"NOAUTH Authentication required.":                                                              Forbidden,
	"ERR Protocol error: unauthenticated multibulk length":                                         Forbidden,
	"WRONGPASS invalid username-password pair or user is disabled.":                                Forbidden,
	"NOPERM this user has no permissions to run the 'evalsha' command":                             Forbidden,
	"NOPERM this user has no permissions to access one of the keys used as arguments":              Forbidden,
	"DENIED Redis is running in protected mode because protected mode is enabled":                  Forbidden,
	"CROSSSLOT Keys in request don't hash to the same slot":                                        Forbidden,
	"ERR unknown command 'evalsha', with args beginning with: '3f'":                                Forbidden,
	"NOPERM ACL failure in script: User app has no permissions to run the 'set' command":           Halfway,
	"BUSYKEY Target key name already exists.":                                                      Halfway,
	"WRONGTYPE Operation against a key holding the wrong kind of value":                            Halfway,
	"ERR The user executing the script can't run this command or subcommand script: 3f, on @u:1.":  Halfway,
	"ERR Script attempted to access a non local key in a cluster node":                             Halfway,
	"ERR Error compiling script (new function): user_script:1: unexpected symbol":                  Halfway,
	"ERR value is not an integer or out of range":                                                  Halfway,
	"ERR user_script:1: Script attempted to access nonexistent global variable 'oops' script: 3f.": Halfway,
	"UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)": Halfway,
	"": Halfway,
	wrapped("READONLY You can't write against a read only replica."):                          Transient,
	wrapped("OOM command not allowed when used memory > 'maxmemory'."):                        Refused,
	wrapped("NOREPLICAS Not enough good replicas to write."):                                  Transient,
	wrapped("MISCONF Errors writing to the AOF file: No space left on device"):                Refused,
	wrapped("WRONGTYPE Operation against a key holding the wrong kind of value"):              Halfway,
	"ERR Error running script (call to f_6b): @user_script:1: user_script:1: oops":            Halfway,
	"ERR a text that mentions READONLY, OOM and - : -READONLY in passing":                     Halfway,
	"ERR Error running script (call to f_6b): @user_script:1: an error about READONLY things": Halfway,

	"ERR Attempted to access a non local key in a cluster node script: on @user_script:339.":                              Halfway,
	"ERR Unable to execute command 'exists' in script because undeclared keys were accessed during rehashing of the slot": Halfway,
}
