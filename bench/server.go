package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// server is the Redis that is locked on, as an observer sees it.
type server struct {
	addr string
	rdb  *redis.Client
}

func (s *server) version(ctx context.Context) (string, error) {
	info, err := s.rdb.InfoMap(ctx, "server").Result()
	if err != nil {
		return "", err
	}
	return info["Server"]["redis_version"], nil
}

// cpuTime returns the processor time that the server has used so far.
func (s *server) cpuTime(ctx context.Context) (time.Duration, error) {
	info, err := s.rdb.InfoMap(ctx, "cpu").Result()
	if err != nil {
		return 0, err
	}
	sys, err1 := strconv.ParseFloat(info["CPU"]["used_cpu_sys"], 64)
	user, err2 := strconv.ParseFloat(info["CPU"]["used_cpu_user"], 64)
	return time.Duration((sys + user) * float64(time.Second)), errors.Join(err1, err2)
}

// monitor watches, by MONITOR, when clients send commands about the locks name:0, name:1,
// and so on.
type monitor struct {
	conn net.Conn
	done chan struct{}

	mu    sync.Mutex
	last  map[int]time.Time // of each lock
	gap   time.Duration     // the longest between two commands about one lock
	total int               // how often a lock was in a command
}

func (s *server) monitor(name string) (*monitor, error) {
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write([]byte("MONITOR\r\n")); err != nil {
		return nil, err
	}
	m := &monitor{conn: conn, done: make(chan struct{}), last: make(map[int]time.Time)}
	reader := bufio.NewReaderSize(conn, 1<<16)
	if _, err := reader.ReadSlice('\n'); err != nil { // it has begun
		return nil, err
	}
	go m.read(reader, name)
	return m, nil
}

func (m *monitor) read(r *bufio.Reader, name string) {
	defer close(m.done)
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		at, locks := parseMonitored(lines.Bytes(), []byte(name+":"))
		m.mu.Lock()
		for _, lock := range locks {
			if last, known := m.last[lock]; known {
				m.gap = max(m.gap, at.Sub(last))
			}
			m.last[lock] = at
			m.total++
		}
		m.mu.Unlock()
	}
}

// parseMonitored reads a line like `+1700000000.123456 [0 127.0.0.1:5] "evalsha" … "name:17" …`, and
// returns the locks in it: none if it is not of interest, as commands that a script has called.
func parseMonitored(line, name []byte) (at time.Time, locks []int) {
	head, rest, found := bytes.Cut(line, name)
	if !found || bytes.Contains(head[:min(len(head), 40)], []byte(" lua] ")) {
		return at, nil
	}
	stamp, _, _ := strings.Cut(strings.TrimPrefix(string(head), "+"), " ")
	seconds, micros, _ := strings.Cut(stamp, ".")
	s, err1 := strconv.ParseInt(seconds, 10, 64)
	us, err2 := strconv.ParseInt(micros, 10, 64)
	if err1 != nil || err2 != nil {
		return at, nil
	}
	for found {
		digits, _, _ := bytes.Cut(rest, []byte{'"'})
		if lock, err := strconv.Atoi(string(digits)); err == nil {
			locks = append(locks, lock)
		}
		_, rest, found = bytes.Cut(rest, name)
	}
	return time.Unix(s, us*1000), locks
}

// seen returns how often a lock was in a command so far.
func (m *monitor) seen() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.total
}

// stop ends the watch, and returns the longest time that a lock went without a command,
// and how many locks there were.
func (m *monitor) stop() (longest time.Duration, locks int) {
	_ = m.conn.Close()
	<-m.done
	m.mu.Lock()
	defer m.mu.Unlock()
	end := time.Now()
	for _, last := range m.last {
		m.gap = max(m.gap, end.Sub(last))
	}
	return m.gap, len(m.last)
}
