//go:build !linux

package resource

import (
	"errors"
	"os/exec"
)

type user struct{}

func unprivileged() (user, error) {
	return user{}, errors.New("it is started on Linux only")
}

func (user) own(string) error { return nil }

func (user) be(*exec.Cmd) {}

func run(*exec.Cmd) (stop func(), err error) { return nil, errors.ErrUnsupported }
