package redistest_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	. "github.com/relock-go/relock/internal/redistest"
)

// neighbourEnv makes this test's binary start relays, and say which of these addresses they got.
const neighbourEnv = "REDISTEST_NEIGHBOUR"

func TestPorts_UnusedOneIsNotTakenByAnotherProcess(t *testing.T) {
	if addrs := os.Getenv(neighbourEnv); addrs != "" {
		for range 1000 {
			r, err := StartRelay("127.0.0.1:1")
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if strings.Contains(addrs, r.Addr+" ") {
				t.Errorf("%s belongs to another process", r.Addr)
			}
		}
		return
	}
	var addrs strings.Builder
	for range 100 {
		r := NewRelay(t, "127.0.0.1:1")
		if err := r.Refuse(true); err != nil {
			t.Fatal(err)
		}
		addrs.WriteString(r.Addr + " ")
	}
	child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	child.Env = append(os.Environ(), neighbourEnv+"="+addrs.String())
	if out, err := child.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
