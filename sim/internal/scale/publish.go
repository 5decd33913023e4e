package scale

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/relock-go/relock/bench/draw"
)

// Command is the command that measures the figures of the page, and writes them there.
const Command = "go run -C sim . -scale -publish .."

// Markdown is the report as tables.
func (r *Report) Markdown() string {
	return r.fleetTable() + "\n" + r.manyTable() + "\n" + r.permitsTable() + "\n" + r.outageTable()
}

// Publish writes tables and picture into the pages, below the root of the repository.
func (r *Report) Publish(root string) error {
	block := fmt.Sprintf("![Lines: commands per hold, the longest wait, and the worst second of an outage, by the number of processes](pictures/scale.svg)\n\n"+
		"`%s`, %s, %s. ", Command, r.Go, r.Day)
	page := filepath.Join(root, "docs", "scale.md")
	return errors.Join(
		os.WriteFile(filepath.Join(root, "docs", "pictures", "scale.svg"), []byte(r.picture()), 0o644),
		draw.ReplaceBlock(page, "fleets", block+"Each process has one goroutine, and keeps the lock for 1 ms:\n\n"+r.fleetTable()),
		draw.ReplaceBlock(page, "many", r.manyTable()),
		draw.ReplaceBlock(page, "permits", r.permitsTable()),
		draw.ReplaceBlock(page, "outages", r.outageTable()))
}

// ofOne are the fleets of one goroutine in each process, the smallest first.
func (r *Report) ofOne() []FleetResult {
	var all []FleetResult
	for _, f := range r.Fleets {
		if f.Waiters == 1 {
			all = append(all, f)
		}
	}
	slices.SortFunc(all, func(a, b FleetResult) int {
		return cmp.Or(cmp.Compare(a.Processes, b.Processes), cmp.Compare(a.RoundTrip, b.RoundTrip))
	})
	return all
}

func (r *Report) fleetTable() string {
	var b strings.Builder
	b.WriteString("| processes | round trip | holds per s | commands per hold | wait: median | p99 | longest | Jain's index | kB for each |\n" +
		"|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, f := range r.ofOne() {
		fmt.Fprintf(&b, "| %s | %s | %s | %.2f | %s | %s | %s | %.3f | %s |\n", whole(f.Processes), ms(f.RoundTrip), draw.Thousands(f.Rate),
			f.Commands, span(f.P50), span(f.P99), span(f.Max), f.Jain, draw.Thousands(f.Bytes/1000))
	}
	return b.String()
}

// manyTable is of many goroutines that wait, and of many names.
func (r *Report) manyTable() string {
	var b strings.Builder
	if len(r.ofOne()) == len(r.Fleets) && len(r.Names) == 0 {
		return ""
	}
	b.WriteString("| | |\n|---|--:|\n")
	row := func(text, value string) { fmt.Fprintf(&b, "| %s | %s |\n", text, value) }
	for _, f := range r.Fleets {
		if f.Waiters == 1 {
			continue
		}
		row(fmt.Sprintf("%s goroutines of %s processes wait for one name: commands per s, of all", whole(f.waiters()), whole(f.Processes)),
			strconv.FormatFloat(f.Idle*float64(f.Processes), 'f', 0, 64))
		row("the same: bytes for each, its goroutine and its share of the process among them", draw.Thousands(f.Bytes))
		row("they get it, and keep it for 1 ms: holds per s", draw.Thousands(f.Rate))
		row("the same: commands per hold", fmt.Sprintf("%.2f", f.Commands))
		row("the same: wait, median; longest", span(f.P50)+"; "+span(f.Max))
		row("the same: Jain's index over processes", fmt.Sprintf("%.3f", f.Jain))
	}
	for _, n := range r.Names {
		row(fmt.Sprintf("%s names are held by %d processes: bytes for each, without Redis", whole(n.Count), n.Processes), draw.Thousands(n.Bytes))
		row("the same: goroutines more than before", draw.Thousands(n.Goroutines))
		row("the same: commands per s, all of them renewals", draw.Thousands(n.Renewals))
		row("all are unlocked: bytes that are left for each", draw.Thousands(max(0, n.LeftBytes)))
	}
	return b.String()
}

func (r *Report) permitsTable() string {
	var b strings.Builder
	b.WriteString("| processes | waiters of each | bytes for each | scripts per s of a process, meanwhile | first served after | then all, within | scripts per permit | most in use |\n" +
		"|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, p := range r.Permits {
		fmt.Fprintf(&b, "| %s | %s | %s | %.1f | %s | %s | %.2f | %d of %d |\n", whole(p.Processes), whole(p.Waiters), draw.Thousands(p.Bytes),
			p.Idle, span(p.Blocked), span(p.Served), p.Scripts, p.Most, p.Limit)
	}
	return b.String()
}

func (r *Report) outageTable() string {
	var b strings.Builder
	b.WriteString("| processes | Redis | scripts per s: before | worst | dials: worst | connections: before | most | served again: first | all | usual | locks lost |\n" +
		"|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, o := range r.sortedOutages() {
		how := "refuses"
		if o.Silent {
			how = "is silent"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %d |\n", whole(o.Processes), how, whole(o.Calm.Scripts), whole(o.Worst.Scripts),
			whole(o.Worst.Dials), whole(o.Calm.Open), whole(o.Worst.Open), span(o.First), span(o.Last), span(o.Round), o.Lost)
	}
	return b.String()
}

// sortedOutages returns the outages that refuse connections, and then the silent ones, the smallest first.
func (r *Report) sortedOutages() []OutageResult {
	all := slices.Clone(r.Outages)
	slices.SortStableFunc(all, func(a, b OutageResult) int {
		if a.Silent != b.Silent {
			return map[bool]int{false: -1, true: 1}[a.Silent]
		}
		return cmp.Compare(a.Processes, b.Processes)
	})
	return all
}

// picture is of what grows with the number of processes.
func (r *Report) picture() string {
	commands := draw.Panel{Title: "Processes that share one name: commands per hold, by the round trip", Along: "processes"}
	longest := draw.Panel{Title: "The same: the longest wait, ms", Along: "processes"}
	for _, n := range sizes {
		commands.Ticks = append(commands.Ticks, float64(n))
	}
	longest.Ticks = commands.Ticks
	for _, trip := range roundTrips {
		c, l := draw.Line{Name: ms(trip), Ours: true}, draw.Line{Name: ms(trip), Ours: true}
		for _, f := range r.ofOne() {
			if f.RoundTrip == trip {
				c.Points = append(c.Points, [2]float64{float64(f.Processes), f.Commands})
				l.Points = append(l.Points, [2]float64{float64(f.Processes), f.Max.Seconds() * 1000})
			}
		}
		if len(c.Points) > 0 {
			commands.Lines, longest.Lines = append(commands.Lines, c), append(longest.Lines, l)
		}
	}
	return draw.Lines("What grows with the number of processes, in virtual time", commands, longest, r.storm())
}

// storm is of the worst second of an outage in which Redis refuses.
func (r *Report) storm() draw.Panel {
	p := draw.Panel{Title: "All lose Redis for 10 s: in the worst second, of all processes", Along: "processes"}
	dials, scripts, before := draw.Line{Name: "dials", Ours: true}, draw.Line{Name: "scripts", Ours: true}, draw.Line{Name: "before:"}
	for _, o := range r.sortedOutages() {
		if o.Silent {
			continue
		}
		n := float64(o.Processes)
		p.Ticks = append(p.Ticks, n)
		dials.Points = append(dials.Points, [2]float64{n, float64(o.Worst.Dials)})
		scripts.Points = append(scripts.Points, [2]float64{n, float64(o.Worst.Scripts)})
		before.Points = append(before.Points, [2]float64{n, float64(o.Calm.Scripts)})
	}
	if len(p.Ticks) > 1 {
		p.Lines = []draw.Line{dials, scripts, before}
	}
	return p
}

func whole(n int) string { return draw.Thousands(float64(n)) }

// ms prints a round trip.
func ms(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds()*1000, 'f', -1, 64) + " ms"
}

// span prints a time of any length, with two digits or three.
func span(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", d.Seconds()*1000)
	case d < time.Second:
		return fmt.Sprintf("%.0f ms", d.Seconds()*1000)
	case d < 100*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	default:
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
}
