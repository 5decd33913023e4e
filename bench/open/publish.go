package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/relock-go/relock/bench/draw"
)

// publish writes the blocks of the page, and the picture, below the root of the repository.
func (r *results) publish(root string) error {
	page := filepath.Join(root, "docs", "benchmark.md")
	err := os.WriteFile(filepath.Join(root, "docs", "pictures", "benchmark.svg"), []byte(r.picture()), 0o644)
	for _, b := range blocks {
		err = errors.Join(err, draw.ReplaceBlock(page, b.name, b.text(r)))
	}
	return err
}

func (r *results) pictureLink() string {
	return "![Lines: the p99 of each lock, as the load grows](pictures/benchmark.svg)\n"
}

// picture shows how the p99 grows with the load: a panel for each scenario, with some of the contenders.
func (r *results) picture() string {
	shown := []string{relockName, "rueidislock", "redsync", "redislock", "Redisson", "PostgreSQL", "etcd", "ZooKeeper"}
	var panels []draw.Panel
	for _, s := range scenarios {
		panel := draw.Panel{Title: s.title + ": p99, ms", Along: "% of its own limit", Ticks: []float64{20, 50, 80, 95}}
		for _, c := range r.took(s.name) {
			if !slices.Contains(shown, c.name) {
				continue
			}
			line := draw.Line{Name: c.name, Ours: strings.HasPrefix(c.name, relockName)}
			for _, l := range levels {
				if one := r.Load[cellKey(s.name, c.name, l.name)]; l.share > 0 && one != nil {
					line.Points = append(line.Points, [2]float64{100 * l.share, one.quantile(99) / 1000})
				}
			}
			panel.Lines = append(panel.Lines, line)
		}
		panels = append(panels, panel)
	}
	return draw.Lines("The wait of one in a hundred, as the load grows", panels...)
}
