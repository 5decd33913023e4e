package resource

import (
	"errors"
	"os"
	"os/exec"
	osuser "os/user"
	"runtime"
	"strconv"
	"syscall"
)

// user is the user of PostgreSQL, which refuses to run as root.
type user struct{ credential *syscall.Credential } // nil: the user that runs this

// unprivileged returns the user for PostgreSQL: the current user, or, if that is root, an unprivileged one.
func unprivileged() (user, error) {
	if os.Getuid() != 0 {
		return user{}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		account, err := osuser.Lookup(name)
		if err != nil {
			continue
		}
		uid, _ := strconv.ParseUint(account.Uid, 10, 32)
		gid, _ := strconv.ParseUint(account.Gid, 10, 32)
		if uid != 0 {
			return user{&syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
		}
	}
	return user{}, errors.New("it does not run as root, and there is no user postgres or nobody")
}

// own makes the user the owner of a directory.
func (u user) own(dir string) error {
	if u.credential == nil {
		return nil
	}
	return os.Chown(dir, int(u.credential.Uid), int(u.credential.Gid))
}

// be makes the command run as the user, and die with this process.
func (u user) be(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: u.credential, Pdeathsig: syscall.SIGQUIT}
}

// run starts a server and returns what stops it, and waits until it has.
func run(cmd *exec.Cmd) (stop func(), err error) {
	started, done := make(chan error, 1), make(chan struct{})
	go func() {
		// The kernel ties "die with the parent" to the thread that forked.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(done)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it was stopped on purpose
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return func() {
		_ = cmd.Process.Signal(syscall.SIGQUIT) // at once, children included
		<-done
	}, nil
}
