package main

import (
	"bufio"
	"embed"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// The head comment of each model has its checks:
//
//	gate: -DFLAG ...               the model keeps its promises, with these flags; in the gate
//	hand: -DFLAG ...               the same, with sizes that take long
//	off: RULE promise -DFLAG ...: what happens without the rule
//
// A promise that is not an assertion is a formula of the model, by its name: then a flag is -DLIVE.

//go:embed *.pml
var models embed.FS

// check is one run of Spin.
type check struct {
	model   string   // its file
	flags   []string // of the preprocessor
	rule    string   // that is switched off; empty: none
	promise string   // that is to be broken then
	meaning string   // of the rule's absence
	long    bool     // not in the gate
}

// live reports whether it is about what happens in the end: a formula, by its name.
func (c check) live() bool { return slices.Contains(c.flags, "-DLIVE") }

func (c check) String() string {
	words := append([]string{strings.TrimSuffix(c.model, ".pml")}, c.flags...)
	if c.rule != "" {
		words = append(words, "without the rule", c.rule)
	}
	return strings.Join(words, " ")
}

var planned = regexp.MustCompile(`^ \* (gate|hand|off):(.*)$`)

// plan is what the models say is to be checked.
func plan() ([]check, error) {
	files, err := models.ReadDir(".")
	if err != nil {
		return nil, err
	}
	var all []check
	for _, file := range files {
		text, err := models.ReadFile(file.Name())
		if err != nil {
			return nil, err
		}
		for lines := bufio.NewScanner(strings.NewReader(string(text))); lines.Scan(); {
			m := planned.FindStringSubmatch(lines.Text())
			if m == nil {
				continue
			}
			c, err := parse(path.Base(file.Name()), m[1], m[2])
			if err != nil {
				return nil, fmt.Errorf("%s: %q: %w", file.Name(), lines.Text(), err)
			}
			all = append(all, c)
		}
	}
	return all, nil
}

func parse(model, kind, text string) (check, error) {
	c := check{model: model, long: kind == "hand"}
	if kind == "off" {
		what, meaning, found := strings.Cut(text, ":")
		words := strings.Fields(what)
		if !found || len(words) < 2 {
			return c, fmt.Errorf("a rule, a promise, flags, a colon and what is done without it are wanted")
		}
		c.rule, c.promise, c.flags, c.meaning = words[0], words[1], words[2:], strings.TrimSpace(meaning)
	} else {
		c.flags = strings.Fields(text)
	}
	for _, flag := range c.flags {
		if !strings.HasPrefix(flag, "-D") {
			return c, fmt.Errorf("%q is no flag", flag)
		}
	}
	return c, nil
}
