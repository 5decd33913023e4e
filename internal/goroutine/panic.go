package goroutine

import (
	"fmt"
	"runtime"
	"strings"
)

// A panic of the application's Redis client must not end the process. The library calls that client on goroutines of its
// own, where the application cannot recover; and the client may be any wrapper, with methods that were never meant to be
// called. So every call of it is guarded, on every goroutine: a panic becomes an error, as a lost connection does.
// The application's own code is not guarded here: relock recovers the panic of a hook where it calls
// the hook, and a panic in the fn of Do passes through Do.

// Panic is the error of a call that panicked. It is unknown what the call did before it panicked.
type Panic struct {
	Value any
	Where string // the function that panicked
}

func (p *Panic) Error() string {
	return fmt.Sprintf("the Redis client panicked in %s: %v", p.Where, p.Value)
}

// Recover ends a panic of the function that defers it, and stores a *Panic in *err. Without a panic *err is
// unchanged:
//
//	defer goroutine.Recover(&err)
func Recover(err *error) {
	if p := recover(); p != nil {
		*err = &Panic{Value: p, Where: where()}
	}
}

// where returns the function whose panic is being recovered.
func where() string {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])]) // above Recover
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		if f.Function != "" && !strings.HasPrefix(f.Function, "runtime.") {
			return f.Function
		}
	}
	return "an unknown function"
}
