package child

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// lives reports whether any process of a group has not ended. Where /proc does not show this process' own numbers,
// zombies count, too.
func lives(group int) bool {
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return true
	}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		stat, err := os.ReadFile(file)
		if err == nil && livesIn(string(stat), group) {
			return true
		}
	}
	return false
}

// livesIn reports whether stat describes a process which lives and is in group. One whose first thread has ended is
// shown as a zombie, but lives while it has others.
func livesIn(stat string, group int) bool {
	const state, pgrp, threads = 0, 2, 17 // behind the name
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
	if len(fields) <= threads || fields[pgrp] != strconv.Itoa(group) {
		return false
	}
	ended := fields[state] == "Z" || fields[state] == "X"
	return !ended || len(fields[threads]) > 1 || fields[threads] > "1"
}
