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
	"regexp"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
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

// compile has a server in memory compile the edited scripts, and type-checks the packages of the library that the
// edited files belong to: a compiler would take its time.
func compile(t *testing.T, root string, all map[string]goPackage, imports types.Importer, edited map[string]string) {
	files := token.NewFileSet()
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	defer rdb.Close()
	done := make(map[string]bool)
	for name, text := range edited {
		dir := path.Dir(name)
		if path.Ext(name) == ".lua" {
			require.NoError(t, rdb.ScriptLoad(t.Context(), text).Err(), name)
			continue
		}
		if done[dir] {
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

func TestMutant_AppliesAndCompiles(t *testing.T) {
	b, all := builder(t), packages(t)
	imports := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(all[path].Export)
	})
	for _, m := range All {
		t.Run(m.Name, func(t *testing.T) {
			require.NotEmpty(t, m.Breaks)
			require.NotEmpty(t, m.Edits)
			files, err := m.apply(b.Root)
			require.NoError(t, err)
			for name, text := range files {
				original, err := os.ReadFile(filepath.Join(b.Root, name))
				require.NoError(t, err)
				require.NotEqual(t, string(original), text, name)
			}
			compile(t, b.Root, all, imports, files)
		})
	}
}

// A name that a script does not have is nil, or an error when it is used: then the mutant would be caught for another reason.
func TestMutant_UsesNamesThatTheScriptHas(t *testing.T) {
	root, text, word := builder(t).Root, regexp.MustCompile(`'[^']*'`), regexp.MustCompile(`[A-Za-z_]\w*`)
	for _, m := range All {
		files, err := sources(root)
		require.NoError(t, err)
		var shared string
		for name, lines := range files {
			if strings.HasSuffix(name, "prelude.lua") {
				shared += strings.Join(lines, "\n")
			}
		}
		for i, e := range m.Edits {
			name, err := e.apply(files, m.anchor(i))
			require.NoError(t, err)
			if path.Ext(name) != ".lua" {
				continue
			}
			original, err := os.ReadFile(filepath.Join(root, name))
			require.NoError(t, err)
			require.Subset(t, word.FindAllString(string(original)+shared, -1), word.FindAllString(text.ReplaceAllString(e.New, ""), -1), m.Name)
		}
	}
}

func TestMutant_NamesAreUnique(t *testing.T) {
	seen := make(map[string]bool)
	for _, m := range All {
		require.False(t, seen[m.Name], m.Name)
		seen[m.Name] = true
	}
}

func TestAnchors_BelongToOneEditEach(t *testing.T) {
	known := make(map[string]bool)
	for _, m := range All {
		for i := range m.Edits {
			known[m.anchor(i)] = true
		}
	}
	files, err := sources(builder(t).Root)
	require.NoError(t, err)
	for file, lines := range files {
		for _, line := range lines {
			if m := anchored.FindStringSubmatch(line); m != nil {
				for _, anchor := range strings.Split(m[2], ", ") {
					require.True(t, known[anchor], "%s has the anchor %s, which no mutant has", file, anchor)
				}
			}
		}
	}
}

// write writes a library of some files, and returns its folder.
func write(t *testing.T, files map[string]string) string {
	dir := t.TempDir()
	for name, text := range files {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, path.Dir(name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

func TestEdit_ChangesTheLineOfItsAnchor(t *testing.T) {
	dir := write(t, map[string]string{
		"below.go":      "a\n\t// mutant: m/1, other\n\tb c // why\nc\n",
		"inside/end.go": "a c // mutant: m/2\nc",
		"inside/a.lua":  "-- mutant: m/3\na\n-- mutant: m/4\nb",
	})
	m := Mutant{Name: "m", Edits: []Edit{{"c", "d"}, {New: "d"}, {New: "b\nc"}, {}}}
	files, err := m.apply(dir)
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		"below.go":      "a\n\t// mutant: m/1, other\n\tb d // why\nc\n",
		"inside/end.go": "d\nc",
		"inside/a.lua":  "-- mutant: m/3\nb\nc\n-- mutant: m/4\n",
	}, files)
}

func TestEdit_EllipsisStandsForAnyText(t *testing.T) {
	const line = "if a(b, c) then d(e) end -- f"
	for old, c := range map[string]struct{ replacement, edited string }{
		"if … then": {"if false then", "if false then d(e) end -- f"},
		"(…,":       {"(x,", "if a(x, c) then d(e) end -- f"},
		" then …":   {" then", "if a(b, c) then"},
		"if …(":     {"if not …(", "if not a(b, c) then d(e) end -- f"},
		"…":         {"g; …", "g; " + line},
		", …) … d(": {", …) … h(", "if a(b, c) then h(e) end -- f"},
	} {
		edited, n := Edit{old, c.replacement}.replace(line)
		require.Equal(t, 1, n)
		require.Equal(t, c.edited, edited)
	}
	_, n := Edit{"if … else", "x"}.replace(line)
	require.Zero(t, n)
}

func TestEdit_HasToFitOnce(t *testing.T) {
	const line = "// mutant: m\nb b a\n"
	for problem, c := range map[string]struct {
		files map[string]string
		old   string
	}{
		"2 times":                    {map[string]string{"a.go": line}, "b"},
		"0 times":                    {map[string]string{"a.go": line}, "c"},
		"two lines have the anchor":  {map[string]string{"a.go": line + line}, "a"},
		"two lines have the anchor ": {map[string]string{"a.go": line, "b.go": line}, "a"},
		"no line has the anchor":     {map[string]string{"a.go": "// mutant: m/1\na"}, "a"},
		"no line has the anchor m":   {map[string]string{"a_test.go": line, "c/go.mod": "", "c/a.go": line}, "a"},
	} {
		m := Mutant{Name: "m", Edits: []Edit{{c.old, "x"}}}
		_, err := m.apply(write(t, c.files))
		require.ErrorContains(t, err, problem)
	}
}

// An overlay has to reach the scripts, too, which the library embeds.
func TestMutant_OfAScriptIsEmbedded(t *testing.T) {
	const mark = "-- a mark that no script has"
	m := Mutant{Name: "fence-incr", Edits: []Edit{{New: mark}}}
	program, err := builder(t).Build(t.Context(), &m, library+"/examples/quickstart")
	require.NoError(t, err)
	binary, err := os.ReadFile(program)
	require.NoError(t, err)
	require.Contains(t, string(binary), mark)
}

func TestMutant_ThatDoesNotCompileIsNone(t *testing.T) {
	m := Mutant{Name: "clock-not-asked", Edits: []Edit{{New: "nonsense"}}}
	_, err := builder(t).Build(t.Context(), &m, library)
	require.ErrorContains(t, err, "mutant clock-not-asked does not compile")
}

func TestMutant_IsChosenByName(t *testing.T) {
	chosen, err := Choose([]string{"no-poll"})
	require.NoError(t, err)
	require.Len(t, chosen, 1)
	_, err = Choose([]string{"no-such"})
	require.ErrorContains(t, err, `"no-such"`)
}
