package main

import (
	"errors"
	"go/build"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// imports are, for each package, the packages that it may import, and the ones that only its tests may import.
// A package is listed above all that it imports: so the arrows go one way.
var imports = []struct{ pkg, may, tests string }{
	{"", "check deployment mutant scenario stage worker", ""},
	{"mutant", "turns", ""},
	{"scenario", "deployment history player scripts stage turns worker", ""},
	{"stage", "check deployment history random resource scripts worker", "player"},
	{"worker", "deployment history player random resource", "check"},
	{"check", "history", ""},
	{"deployment", "", ""},
	{"scripts", "", ""},
	{"resource", "", ""},
	{"random", "", ""},
	{"turns", "", ""},
	{"player", "history", ""},
	{"history", "", ""},
}

const module = "github.com/relock-go/relock/chaos"

// short is what a package of this module is called in imports, "" for the program itself.
func short(path string) (name string, ours bool) {
	if path == module {
		return "", true
	}
	name, ours = strings.CutPrefix(path, module+"/")
	return strings.TrimPrefix(name, "internal/"), ours
}

func TestImports_GoOneWay(t *testing.T) {
	may, tests := make(map[string][]string), make(map[string][]string)
	for _, p := range imports {
		may[p.pkg] = strings.Fields(p.may)
		tests[p.pkg] = append(strings.Fields(p.tests), may[p.pkg]...)
		for _, name := range tests[p.pkg] {
			require.NotContains(t, may, name, "%q may import %q, which is listed above it", p.pkg, name)
		}
	}
	packages := packagesHere(t)
	require.Len(t, packages, len(imports), "packages that are listed")
	for name, p := range packages {
		require.Contains(t, may, name)
		requireWithin(t, may[name], p.Imports, name)
		requireWithin(t, tests[name], slices.Concat(p.TestImports, p.XTestImports), "the tests of "+name)
	}
}

// requireWithin requires that only the allowed packages of this module are imported.
func requireWithin(t *testing.T, may, imported []string, by string) {
	t.Helper()
	for _, path := range imported {
		if name, ours := short(path); ours {
			require.Contains(t, may, name, "imported by %q", by)
		}
	}
}

// packagesHere returns the packages of this module, by their names in imports. The files are
// read here, and not by the go command, so that a change of them is a new test.
func packagesHere(t *testing.T) map[string]*build.Package {
	packages := make(map[string]*build.Package)
	require.NoError(t, filepath.WalkDir(".", func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		p, err := build.ImportDir(dir, 0)
		if noGo := (*build.NoGoError)(nil); errors.As(err, &noGo) {
			return nil
		}
		name, ours := short(path.Join(module, filepath.ToSlash(dir)))
		require.True(t, ours, dir)
		packages[name] = p
		return err
	}))
	return packages
}

func TestDescription_HasEveryPackage(t *testing.T) {
	page, err := os.ReadFile("scenarios.md")
	require.NoError(t, err)
	for _, p := range imports[1:] {
		require.Regexp(t, "\n\\| `(internal/)?"+p.pkg+"` \\| ", string(page))
	}
}
