package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

func startTestProcess(t *testing.T) *process {
	p, err := startProcess()
	require.NoError(t, err)
	t.Cleanup(p.stop)
	return p
}

func TestWorker_EndsWithItsParentInTheMiddleOfAnOrder(t *testing.T) {
	addr := redistest.Redis(t).Addr
	p := startTestProcess(t)
	_, err := p.call(order{Verb: openClient, Contender: plainFloor, Setup: setup{Addr: addr}})
	require.NoError(t, err)
	require.NoError(t, p.send(order{Verb: runLoop, Name: redistest.Key(t), Goroutines: 1, Start: time.Now(), Duration: time.Hour}))

	require.NoError(t, p.orders.Close()) // as the system does for a parent that is killed
	select {
	case _, more := <-p.answers:
		require.False(t, more, "it has not done the order")
	case <-time.After(20 * time.Second):
		t.Fatal("the worker outlives its parent")
	}
	require.True(t, p.cmd.ProcessState.Exited())
}

func TestWorker_ReportsArrive(t *testing.T) {
	p := startTestProcess(t)
	_, err := p.call(order{Verb: openClient, Contender: "nobody"})
	require.ErrorContains(t, err, `no contender is called "nobody"`)
	a, err := p.call(order{Verb: reportUsage})
	require.NoError(t, err, "it goes on after that")
	require.Positive(t, a.Usage.Memory)
	require.Positive(t, a.Usage.Goroutines)

	require.NoError(t, p.cmd.Process.Kill())
	_, err = p.receive(0)
	require.ErrorContains(t, err, "a worker has ended")
}

func TestMonitor_TakesCommandsApart(t *testing.T) {
	name := []byte("bench:7:1:")
	at, locks := parseMonitored([]byte(`+1700000000.123456 [0 127.0.0.1:5] "evalsha" "ab" "1" "bench:7:1:42" "x"`), name)
	require.Equal(t, []int{42}, locks)
	require.Equal(t, int64(1700000000123456), at.UnixMicro())

	_, locks = parseMonitored([]byte(`+1700000000.123456 [0 127.0.0.1:5] "evalsha" "ab" "2" "bench:7:1:42" "bench:7:1:8" "x"`), name)
	require.Equal(t, []int{42, 8}, locks, "renewed together")

	for _, line := range []string{
		`+1700000000.123456 [0 lua] "hset" "bench:7:1:42" "x"`, // the script's doing
		`+1700000000.123456 [0 127.0.0.1:5] "evalsha" "ab" "1" "bench:8:1:42"`,
		`+1700000000.123456 [0 127.0.0.1:5] "evalsha" "ab" "1" "bench:7:1:check"`,
	} {
		_, locks := parseMonitored([]byte(line), name)
		require.Empty(t, locks, line)
	}
}

func TestMonitor_FindsTheLongestGap(t *testing.T) {
	s := server{}
	redisServer := redistest.NewServer(t)
	s.addr, s.rdb = redisServer.Addr, redisServer.Client(t)
	m, err := s.monitor("held")
	require.NoError(t, err)
	for _, key := range []string{"held:0", "held:1", "other:0", "held:1"} {
		require.NoError(t, s.rdb.Set(t.Context(), key, 1, 0).Err())
	}
	require.Eventually(t, func() bool { return m.seen() == 3 }, 10*time.Second, time.Millisecond)
	time.Sleep(50 * time.Millisecond) // is what it has to find: nothing is sent for so long
	longest, locks := m.stop()
	require.Equal(t, 2, locks)
	require.GreaterOrEqual(t, longest, 50*time.Millisecond)
}

func TestContender_ExcludesAndWakes(t *testing.T) {
	s := setup{Addr: redistest.Redis(t).Addr}
	for range votingServers {
		s.Addrs = append(s.Addrs, redistest.NewServer(t).Addr)
	}
	for _, c := range contenders {
		p := startTestProcess(t)
		_, err := p.call(order{Verb: openClient, Contender: c.name, Setup: s, Check: true, Name: redistest.Key(t)})
		require.NoError(t, err, c.name)
		_, err = p.call(order{Verb: closeClient})
		require.NoError(t, err, c.name)
	}
}
