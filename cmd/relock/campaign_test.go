//go:build unix

package main_test

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCampaign_RunsOfManyProcessesNeverOverlapAndAllRun(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	processes, each := 20, 3
	if *long {
		each = 50
	}
	file := inDir(t, "log")
	began := time.Now()
	var all sync.WaitGroup
	codes := make(chan int, processes*each)
	for i := range processes {
		kind := [][]string{{"run"}, {"run", "--fair"}}[i%2]
		all.Go(func() {
			for range each {
				cmd := command(t, url, append(kind, "a", "--", "sh", "-c", `echo + >> `+file+`; sleep 0.01; echo - >> `+file)...)
				_ = cmd.Run()
				codes <- cmd.ProcessState.ExitCode()
			}
		})
	}
	all.Wait()
	t.Logf("%d runs of %d processes at a time in %v", processes*each, processes, time.Since(began))
	close(codes)
	for code := range codes {
		require.Equal(t, 0, code)
	}
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	inside, runs := false, 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		begins := strings.TrimSpace(lines.Text()) == "+"
		require.NotEqual(t, inside, begins, "line "+strconv.Itoa(runs))
		inside = begins
		runs++
	}
	require.Equal(t, 2*processes*each, runs)
	requireFree(t, s.Client(t), "a")
}
