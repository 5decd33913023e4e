package mutant

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func builder(t *testing.T) *Builder {
	b, err := NewBuilder(t.Context(), t.TempDir())
	require.NoError(t, err)
	return b
}

// goPackage is what `go list` says of a package of the library, or of what that imports.
type goPackage struct {
	ImportPath, Export string
	GoFiles            []string
}

const library = "github.com/relock-go/relock"

// packages returns the library's packages and all that they import, compiled.
func packages(t *testing.T) map[string]goPackage {
	list := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-json=ImportPath,Export,GoFiles", library)
	out, err := list.Output()
	require.NoError(t, explained(err))
	all := make(map[string]goPackage)
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		all[p.ImportPath] = p
	}
}

// compile type-checks the packages of the library that the edited files belong to: a
// compiler would take its time.
func compile(t *testing.T, root string, all map[string]goPackage, edited map[string]string) {
	files := token.NewFileSet()
	imports := importer.ForCompiler(files, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(all[path].Export)
	})
	done := make(map[string]bool)
	for name := range edited {
		dir := path.Dir(name)
		if path.Ext(name) != ".go" || done[dir] {
			continue
		}
		done[dir] = true
		var parsed []*ast.File
		for _, file := range all[path.Join(library, dir)].GoFiles {
			var source any
			if text, isEdited := edited[path.Join(dir, file)]; isEdited {
				source = text
			}
			f, err := parser.ParseFile(files, filepath.Join(root, dir, file), source, 0)
			require.NoError(t, err)
			parsed = append(parsed, f)
		}
		require.NotEmpty(t, parsed)
		_, err := (&types.Config{Importer: imports}).Check(dir, files, parsed, nil)
		require.NoError(t, err)
	}
}

func TestEveryMutantAppliesAndCompiles(t *testing.T) {
	b, all := builder(t), packages(t)
	for _, m := range All {
		t.Run(m.Name, func(t *testing.T) {
			require.NotEmpty(t, m.Breaks)
			require.NotEmpty(t, m.Edits)
			require.NotEmpty(t, m.Catch)
			files, err := m.apply(b.Root)
			require.NoError(t, err)
			for name, text := range files {
				original, err := os.ReadFile(filepath.Join(b.Root, name))
				require.NoError(t, err)
				require.NotEqual(t, string(original), text, name)
			}
			compile(t, b.Root, all, files)
		})
	}
}

func TestNamesOfMutantsAreTheirOwn(t *testing.T) {
	seen := make(map[string]bool)
	for _, m := range All {
		require.False(t, seen[m.Name], m.Name)
		seen[m.Name] = true
	}
}

func TestAnEditHasToFitOnce(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "f.go"), []byte("a b b"), 0o600))
	for old, problem := range map[string]string{
		"b": "2 times",
		"c": "0 times",
	} {
		m := Mutant{Name: "m", Edits: []Edit{{"f.go", old, "x"}}}
		_, err := m.apply(dir)
		require.ErrorContains(t, err, problem)
	}
	m := Mutant{Edits: []Edit{{"f.go", "a", "x"}, {"f.go", "x b b", "y"}}}
	files, err := m.apply(dir)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"f.go": "y"}, files)
}

// An overlay has to reach the scripts, too, which the library embeds.
func TestAMutantOfAScriptIsEmbedded(t *testing.T) {
	const mark = "-- a mark that no script has"
	m := Mutant{Name: "marked", Edits: []Edit{{"internal/protocol/lua/renew.lua", "-- Lengthens", mark + "\n-- Lengthens"}}}
	program, err := builder(t).Build(t.Context(), &m, library+"/examples/quickstart")
	require.NoError(t, err)
	binary, err := os.ReadFile(program)
	require.NoError(t, err)
	require.Contains(t, string(binary), mark)
}

func TestAMutantThatDoesNotCompileIsNoMutant(t *testing.T) {
	m := Mutant{Name: "nonsense", Edits: []Edit{{"hold.go", "package relock", "package relock; nonsense"}}}
	_, err := builder(t).Build(t.Context(), &m, library)
	require.ErrorContains(t, err, "mutant nonsense does not compile")
}
