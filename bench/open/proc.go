package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// What /proc tells of processes, of the loopback and of the machine: the same for servers and workers in any language.

// tick is the unit of processor time in /proc.
const tick = 10 * time.Millisecond

// stat returns the fields of /proc/PID/stat after the name of the program: the state is field 0.
func stat(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
}

// descendants returns pid and all processes below it.
func descendants(pid int) []int {
	below := make(map[int][]int)
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		id, _ := strconv.Atoi(filepath.Base(dir))
		if fields := stat(id); len(fields) > 1 {
			parent, _ := strconv.Atoi(fields[1])
			below[parent] = append(below[parent], id)
		}
	}
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		all = append(all, below[all[i]]...)
	}
	return all
}

// cpuOf returns the processor time of processes so far, with that of their children that have ended.
func cpuOf(pids []int) time.Duration {
	ticks := 0
	for _, pid := range pids {
		if fields := stat(pid); len(fields) > 14 {
			for _, field := range fields[11:15] {
				n, _ := strconv.Atoi(field)
				ticks += n
			}
		}
	}
	return time.Duration(ticks) * tick
}

// memoryOf returns the memory of processes that is not shared, with their part of what is.
func memoryOf(pids []int) int64 {
	total := int64(0)
	for _, pid := range pids {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		_, rest, _ := strings.Cut(string(text), "\nPss:")
		if fields := strings.Fields(rest); len(fields) > 0 {
			kB, _ := strconv.ParseInt(fields[0], 10, 64)
			total += kB << 10
		}
	}
	return total
}

// loopback returns how many bytes have passed over the loopback so far, with the headers of TCP and IP.
func loopback() int64 {
	text, _ := os.ReadFile("/proc/net/dev")
	_, rest, _ := strings.Cut(string(text), "lo:")
	if fields := strings.Fields(rest); len(fields) > 0 {
		n, _ := strconv.ParseInt(fields[0], 10, 64)
		return n
	}
	return 0
}

// machineTime is how the processors of the machine have spent their time so far.
type machineTime struct{ busy, stolen, total time.Duration }

// parseMachineTime reads the first line of /proc/stat: user nice system idle iowait irq softirq steal. Interrupts are
// counted in total only: those of the loopback are caused by the benchmark itself.
func parseMachineTime(text string) (machineTime, error) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return machineTime{}, fmt.Errorf("/proc/stat begins with %q", line)
	}
	var n [8]time.Duration
	var m machineTime
	for i := range n {
		ticks, err := strconv.ParseInt(fields[i+1], 10, 64)
		if err != nil {
			return m, err
		}
		n[i] = time.Duration(ticks) * tick
		m.total += n[i]
	}
	m.busy, m.stolen = n[0]+n[1]+n[2], n[7]
	return m, nil
}

func readMachineTime() (machineTime, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return machineTime{}, err
	}
	return parseMachineTime(string(text))
}
