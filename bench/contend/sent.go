package contend

import (
	"net"
	"sync/atomic"
)

// Sent is how many commands this process has sent to Redis so far. They are counted where
// they are written: Redis counts what scripts call, too.
var Sent atomic.Int64

// counting is a connection whose commands are counted. It is a TCP connection in all else:
// clients look beneath for signs of life.
type counting struct {
	*net.TCPConn
	requests requests
}

// counted makes a connection that was dialed a counting one.
func counted(conn net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	return &counting{TCPConn: conn.(*net.TCPConn)}, nil
}

func (c *counting) Write(b []byte) (int, error) {
	Sent.Add(c.requests.count(b))
	return c.TCPConn.Write(b)
}

// requests finds the commands in what is written to Redis: arrays of arguments, each with
// its length before it, cut anywhere. The zero value begins with a command.
type requests struct {
	number int  // in the line that is being read
	length bool // it is that of an argument
	skip   int  // bytes of an argument, and of the end of its line, that are still to come
}

// count returns how many commands begin in b, which goes on where the last one has ended.
func (r *requests) count(b []byte) (commands int64) {
	i := r.skip
	for ; i < len(b); i++ {
		switch c := b[i]; c {
		case '*':
			commands++
			r.number, r.length = 0, false
		case '$':
			r.number, r.length = 0, true
		case '\r':
		case '\n':
			if r.length {
				i += r.number + len("\r\n")
			}
		default:
			r.number = 10*r.number + int(c-'0')
		}
	}
	r.skip = i - len(b)
	return commands
}
