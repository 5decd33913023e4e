package goroutine

import (
	"bytes"
	"runtime"
	"strconv"

	"github.com/petermattis/goid"
)

// Go has no official name for a goroutine, but its number is in every stack trace, and
// is not used twice in a process, except for callbacks from threads of C. The runtime's own copy
// of it is read by github.com/petermattis/goid in about a nanosecond, at an offset that
// depends on the Go version; parsing a stack trace takes microseconds but works everywhere.
// So the fast way is compared with the slow one once, at start-up, and used only if
// they agree.

// fast reports that the fast way can be trusted with this Go release.
var fast = agrees(goid.Get)

// ID returns the number of the calling goroutine. It is unique in the process
// and is not used again after the goroutine has ended.
func ID() int64 {
	if fast {
		return goid.Get()
	}
	return parse()
}

// agrees compares get with the parsed stack, on two goroutines: a wrong offset could
// hold the right number once by chance.
func agrees(get func() int64) bool {
	other := make(chan bool)
	go func() { other <- get() == parse() }()
	return get() == parse() && <-other
}

// parse reads the number from the first line of a stack trace: "goroutine 17 [running]:".
func parse() int64 {
	var buf [64]byte
	line := buf[:runtime.Stack(buf[:], false)]
	number, _, _ := bytes.Cut(bytes.TrimPrefix(line, []byte("goroutine ")), []byte(" "))
	id, err := strconv.ParseInt(string(number), 10, 64)
	if err != nil {
		panic("goroutine: no number in the stack trace " + strconv.Quote(string(line)))
	}
	return id
}
