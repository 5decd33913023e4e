package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/relock-go/relock/sim/internal/bubble"
	"github.com/relock-go/relock/sim/internal/scale"
)

// measured is the file with the results.
const measured = "scale.json"

// runScale measures how the library scales, and prints the report. With the root of the repository it also saves the report, and
// writes it into the pages.
func runScale(run bubble.Runner, only, root string) int {
	if err := measureScale(run, only, root); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return failed
	}
	return allKept
}

func measureScale(run bubble.Runner, only, root string) error {
	chosen, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	r, file := new(scale.Report), filepath.Join(root, "sim", measured)
	if root != "" {
		if r, err = scale.Load(file); errors.Is(err, fs.ErrNotExist) {
			r = new(scale.Report)
		} else if err != nil {
			return err
		}
	}
	if err := r.Measure(run, chosen, func(name string, took time.Duration) error {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, took.Round(time.Second))
		if root == "" {
			return nil
		}
		return r.Save(file) // if the run is ended early, its results are not lost
	}); err != nil {
		return err
	}
	fmt.Println(r.Markdown())
	if root == "" {
		return nil
	}
	return r.Publish(root)
}
