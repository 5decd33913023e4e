package cli

import (
	"bytes"
	"io"
	"time"
)

// backlog writes to standard error in the background. Nobody waits for it: it may be blocked, as by Ctrl-S on a terminal, or by a
// pipe that nobody reads, and then a command whose lock is lost has to be ended all the same.
type backlog struct{ entries chan entry }

// entry is one write, or a question.
type entry struct {
	text    []byte
	written chan struct{} // closed when all before it is written; nil: nobody asks
}

// mostEntries bounds a backlog. What does not fit is dropped.
const mostEntries = 1000

func newBacklog(w io.Writer) *backlog {
	b := &backlog{make(chan entry, mostEntries)}
	go func() { // until this process ends
		for e := range b.entries {
			if e.written != nil {
				close(e.written)
				continue
			}
			_, _ = w.Write(e.text)
		}
	}()
	return b
}

func (b *backlog) Write(text []byte) (int, error) {
	select {
	case b.entries <- entry{text: bytes.Clone(text)}:
	default:
	}
	return len(text), nil
}

// flush waits until all is written, for d at most.
func (b *backlog) flush(d time.Duration) {
	over, written := time.After(d), make(chan struct{})
	select {
	case b.entries <- entry{written: written}:
	case <-over:
		return
	}
	select {
	case <-written:
	case <-over:
	}
}
