package redistest_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	. "github.com/relock-go/relock/internal/redistest"
)

func TestServer_PausedOneAnswersAfterResume(t *testing.T) {
	s := NewServer(t)
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1})
	defer rdb.Close()
	if err := rdb.Ping(t.Context()).Err(); err != nil { // connected: INCR is sent at once
		t.Fatal(err)
	}
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	wantTimeout(t, rdb.WithTimeout(100*time.Millisecond).Incr(t.Context(), "n").Err())
	if err := s.Resume(); err != nil {
		t.Fatal(err)
	}
	poll(t, func() bool { return rdb.Get(t.Context(), "n").Val() == "1" }) // executed after all
}

func TestServer_RestartKeepsTheAddressAndForgetsData(t *testing.T) {
	s := NewServer(t)
	rdb := s.Client(t)
	rdb.Set(t.Context(), "k", "v", 0)
	s.Kill()
	if err := rdb.Ping(t.Context()).Err(); err == nil {
		t.Fatal("a killed server answers")
	}
	if s.Pause() == nil || s.Resume() == nil {
		t.Fatal("a killed server was paused or resumed")
	}
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	wantValue(t, rdb, "k", "")
}

func TestServer_ExtraArgumentsOverrideDefaults(t *testing.T) {
	s := NewServer(t, "--appendonly", "yes", "--appendfsync", "always")
	rdb := s.Client(t)
	rdb.Set(t.Context(), "k", "v", 0)
	if err := s.Restart(); err != nil { // kills, without a goodbye
		t.Fatal(err)
	}
	wantValue(t, rdb, "k", "v")
}

func TestServer_FailedStartReportsWhy(t *testing.T) {
	RequireServer(t)
	_, err := StartServer(t.TempDir(), "--no-such-option", "1")
	if err == nil || !strings.Contains(err.Error(), "no-such-option") {
		t.Fatalf("error is %v", err)
	}
}

func TestServer_CloseRemovesItsDirectoryAndStopsAPausedOne(t *testing.T) {
	s := NewServer(t)
	s.Pause()
	s.Close()
	if _, err := os.Stat(s.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("directory: %v", err)
	}
}

// orphanEnv makes this test's binary start a server and wait to be killed.
const orphanEnv = "REDISTEST_ORPHAN"

func TestServer_DiesWithItsParent(t *testing.T) {
	if os.Getenv(orphanEnv) != "" {
		s, err := StartServer("")
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("ADDR", s.Addr, s.Dir)
		select {}
	}
	RequireServer(t)
	child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	child.Env = append(os.Environ(), orphanEnv+"=1")
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	child.Process.Signal(syscall.SIGKILL)
	child.Wait()
	words := strings.Fields(line)
	if err != nil || len(words) != 3 || words[0] != "ADDR" {
		t.Fatalf("child said %q, %v", line, err)
	}
	os.RemoveAll(words[2])
	rdb := redis.NewClient(&redis.Options{Addr: words[1], MaxRetries: -1, DialerRetries: 1})
	defer rdb.Close()
	poll(t, func() bool { return errors.Is(rdb.Ping(t.Context()).Err(), syscall.ECONNREFUSED) })
}

func TestBackend_AnswersAndKeysAreUniqueAndPlain(t *testing.T) {
	Each(t, func(t *testing.T, b *Backend) {
		rdb := b.Client(t)
		key := Key(t)
		if key == Key(t) || strings.ContainsAny(key, "{}:/ #") {
			t.Fatalf("bad key %q", key)
		}
		if err := rdb.Set(t.Context(), key, "v", 20*time.Millisecond).Err(); err != nil {
			t.Fatal(err)
		}
		poll(t, func() bool { return rdb.Exists(t.Context(), key).Val() == 0 }) // TTLs run
		if b.Real != (b.Miniredis == nil) || !strings.HasSuffix(t.Name(), b.Name) {
			t.Fatalf("%+v in %s", b, t.Name())
		}
	})
}

func TestBackend_MiniredisInABubbleUsesItsClock(t *testing.T) {
	InBubble(t, func(t *testing.T, b *Backend) {
		rdb := b.Client(t)
		ctx := context.Background()
		if err := rdb.Set(ctx, "k", "v", time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
		<-time.After(59 * time.Minute)
		wantValue(t, rdb, "k", "v")
		<-time.After(2 * time.Minute)
		wantValue(t, rdb, "k", "")
	})
}
