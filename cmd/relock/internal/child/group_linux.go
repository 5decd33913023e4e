package child

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// groupsLeft returns the process groups of what lives of a command that was started in the group first: that group, and the
// descendants of this process in its session, also those that have lost their parent (adoptOrphans), and those in a group of their
// own, as the command of a relock inside has. Who has a session of its own (setsid) has left. false: /proc does not show this
// process' own numbers.
func groupsLeft(first int) (groups []int, known bool) {
	self := os.Getpid()
	if link, err := os.Readlink("/proc/self"); err != nil || link != strconv.Itoa(self) {
		return nil, false
	}
	all := make(map[int]process)
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		stat, err := os.ReadFile(file)
		if pid, p, ok := parse(string(stat)); err == nil && ok {
			all[pid] = p
		}
	}
	session, err := unix.Getsid(0)
	if err != nil {
		return nil, false
	}
	own := unix.Getpgrp()
	for pid, p := range all {
		if p.lives && p.session == session && p.group != own && !slices.Contains(groups, p.group) && (p.group == first || descends(all, pid, self)) {
			groups = append(groups, p.group)
		}
	}
	return groups, true
}

// descends reports whether pid is a descendant of ancestor.
func descends(all map[int]process, pid, ancestor int) bool {
	for range all { // numbers that are used again could make a circle
		p, known := all[pid]
		if !known || p.parent == ancestor {
			return known
		}
		pid = p.parent
	}
	return false
}

// process is what the kernel reports of one.
type process struct {
	parent, group, session int
	lives                  bool // it is no zombie; one whose first thread has ended is shown as a zombie, but lives while it has others
}

// parse reads the file stat of a process.
func parse(stat string) (pid int, p process, ok bool) {
	const state, parent, group, session, threads = 0, 1, 2, 3, 17 // behind the name
	end := strings.LastIndex(stat, ")")
	fields := strings.Fields(stat[end+1:])
	number, _, _ := strings.Cut(stat, " ")
	pid, err := strconv.Atoi(number)
	if err != nil || len(fields) <= threads {
		return 0, process{}, false
	}
	at := func(i int) int {
		n, _ := strconv.Atoi(fields[i])
		return n
	}
	ended := fields[state] == "Z" || fields[state] == "X"
	return pid, process{at(parent), at(group), at(session), !ended || at(threads) > 1}, true
}
