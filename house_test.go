// The tests of the house read files, on one goroutine: the race detector would find nothing, and take eight times as long.
//go:build !race

package relock_test

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/pagetest"
)

// ranks of the packages of this module. Each imports packages of lower ranks only.
var ranks = map[string]int{
	"internal/clock": 0, "internal/lockerr": 0, "internal/queue": 0,
	"internal/goroutine": 1, "internal/keys": 1, "internal/lease": 1,
	"internal/redisexec": 2, "internal/wake": 2, "fence": 2,
	"internal/deadlock": 3, "internal/protocol": 3, "internal/undo": 3,
	"internal/line": 4, "internal/quorum": 4,
	".":        5,
	"election": 6, "relocktest": 6,
}

// experimental are parts of the names of go-redis' auto-pipelining, which may change in its minor versions, and which older ones
// do not have.
var experimental = []string{"AutoPipelin", "AutoFuture", "FullDuplex", "FDPipelin", "FlushDelay", "Submit", "WaitContext"}

func TestHouse_NoFileUsesExperimentalGoRedis(t *testing.T) {
	has := func(text string) bool {
		return slices.ContainsFunc(experimental, func(part string) bool { return strings.Contains(text, part) })
	}
	pagetest.EachGoFile(t, ".", func(file string) {
		if !has(pagetest.Read(t, file)) {
			return // so most files are not parsed
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			name, is := n.(*ast.Ident)
			require.False(t, is && has(name.Name), "%s uses %v", file, n)
			return true
		})
	})
}

// A module that is not in the first list stays with the dependencies that it has. The gate tests the modules in the second.
func TestHouse_DependabotAndWorkspaceHaveEachModule(t *testing.T) {
	config, workspace := pagetest.Read(t, ".github/dependabot.yml"), pagetest.Read(t, "go.work")
	require.NoError(t, filepath.WalkDir(".", func(file string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == "go.mod" {
			dir := path.Join("/", path.Dir(filepath.ToSlash(file)))
			require.Contains(t, config, "\n      - "+dir+"\n", ".github/dependabot.yml")
			require.Contains(t, workspace, "\t."+strings.TrimSuffix(dir, "/")+"\n", "go.work")
		}
		return err
	}))
}

// The owner of an action can move a tag, but not a commit. dependabot updates both the commit and the comment.
func TestHouse_WorkflowsPinActionsByCommit(t *testing.T) {
	files, err := filepath.Glob(".github/workflows/*.yml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	used := regexp.MustCompile(`(?m)\buses:.*$`)
	for _, file := range files {
		for _, action := range used.FindAllString(pagetest.Read(t, file), -1) {
			require.Regexp(t, `^uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`, action, file)
		}
	}
}

func TestHouse_PackagesImportLowerRanksOnly(t *testing.T) {
	const module = "github.com/relock-go/relock"
	for dir, rank := range ranks {
		pkg, err := build.ImportDir(dir, 0)
		require.NoError(t, err, dir)
		for _, imported := range pkg.Imports {
			if inner, ours := strings.CutPrefix(imported, module+"/"); ours {
				below, known := ranks[inner]
				require.True(t, known, "%s imports %s, which has no rank", dir, inner)
				require.Less(t, below, rank, "%s imports %s", dir, inner)
			}
		}
	}
}

func TestHouse_EachPackageHasARank(t *testing.T) {
	entries, err := os.ReadDir("internal")
	require.NoError(t, err)
	for _, entry := range entries {
		dir := path.Join("internal", entry.Name())
		pkg, err := build.ImportDir(dir, 0)
		require.NoError(t, err)
		if fixture := len(pkg.GoFiles) > 0 && strings.HasSuffix(entry.Name(), "test"); !fixture {
			require.Contains(t, ranks, dir)
		}
	}
}

// A row begins | 0 | `internal/clock` | …, one of files | `lock.go`, `client*.go` | … Each file is in one row.
func TestHouse_DesignPageListsPackagesAndFiles(t *testing.T) {
	page := pagetest.Read(t, "docs/design.md")
	quoted := regexp.MustCompile("`([^`]*[^/`])`")

	described := make(map[string]int)
	for _, row := range regexp.MustCompile(`(?m)^\| (\d+) \| ([^|]+) \|`).FindAllStringSubmatch(page, -1) {
		rank, err := strconv.Atoi(row[1])
		require.NoError(t, err)
		for _, name := range quoted.FindAllStringSubmatch(strings.Replace(row[2], "the root", "`.`", 1), -1) {
			require.NotContains(t, described, name[1], "two rows of docs/design.md have it")
			described[name[1]] = rank
		}
	}
	require.Equal(t, ranks, described, "docs/design.md, the table of packages")

	root, err := build.ImportDir(".", 0)
	require.NoError(t, err)
	var files []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`\\w+\\*?\\.go`[^|]*) \\|").FindAllStringSubmatch(page, -1) {
		for _, name := range quoted.FindAllStringSubmatch(row[1], -1) {
			found := slices.DeleteFunc(slices.Clone(root.GoFiles), func(file string) bool {
				matches, err := path.Match(name[1], file)
				require.NoError(t, err)
				return !matches
			})
			require.NotEmpty(t, found, "docs/design.md, the table of files: %s", name[1])
			files = append(files, found...)
		}
	}
	require.ElementsMatch(t, root.GoFiles, files, "docs/design.md, the table of files")
}

func TestHouse_DesignPageNamesExistingCode(t *testing.T) {
	declared, found := pagetest.Declared(t, "."), 0
	for _, m := range regexp.MustCompile("`([A-Za-z]+\\.[A-Za-z]+)`").FindAllStringSubmatch(pagetest.Prose(pagetest.Read(t, "docs/design.md")), -1) {
		if name := m[1]; path.Ext(name) != ".go" && path.Ext(name) != ".lua" {
			found++
			require.True(t, declared(name), "docs/design.md names %s", name)
		}
	}
	require.Greater(t, found, 20)
}

func TestHouse_TestsAreNamedSubjectAndProperty(t *testing.T) {
	named := regexp.MustCompile(`^Test[A-Z][A-Za-z0-9]*_[A-Z][A-Za-z0-9]*$`)
	pagetest.EachGoFile(t, ".", func(file string) {
		if !strings.HasSuffix(file, "_test.go") {
			return
		}
		for _, name := range testsOf(t, file) {
			require.Regexp(t, named, name, file)
		}
	})
}

// go test -run Batch, Multi or Quorum finds all tests of these files.
func TestHouse_TestsHaveTheirSubjectInTheirNames(t *testing.T) {
	for files, subject := range map[string]string{
		"batch*_test.go": "Batch", "multi*_test.go": "Multi", "quorum*_test.go": "Quorum",
		"internal/protocol/multi*_test.go": "Multi", "internal/quorum/*_test.go": "Quorum",
	} {
		found, err := filepath.Glob(files)
		require.NoError(t, err)
		require.NotEmpty(t, found, files)
		for _, file := range found {
			for _, name := range testsOf(t, file) {
				require.Contains(t, name, subject, file)
			}
		}
	}
}

var declaredTest = regexp.MustCompile(`(?m)^func (Test\w*)\(`)

// testsOf returns the names of the tests in a file.
func testsOf(t *testing.T, file string) (names []string) {
	t.Helper()
	for _, m := range declaredTest.FindAllStringSubmatch(pagetest.Read(t, file), -1) {
		if m[1] != "TestMain" {
			names = append(names, m[1])
		}
	}
	return names
}

const (
	mostLines     = 500 // of a file
	mostFuncLines = 70  // of a function, but not of a test: it is read on one screen
)

func TestHouse_FilesAndFunctionsAreShort(t *testing.T) {
	require.NoError(t, filepath.WalkDir(".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(file) != ".go" {
			return err
		}
		text := pagetest.Read(t, file)
		require.LessOrEqual(t, strings.Count(text, "\n"), mostLines, file)
		if strings.HasSuffix(file, "_test.go") {
			return nil
		}
		files := token.NewFileSet()
		parsed, err := parser.ParseFile(files, file, text, parser.SkipObjectResolution)
		require.NoError(t, err)
		lines := func(n ast.Node) int { return files.Position(n.End()).Line - files.Position(n.Pos()).Line + 1 }
		for _, d := range parsed.Decls {
			if f, is := d.(*ast.FuncDecl); is {
				require.LessOrEqual(t, lines(f), mostFuncLines, "%s in %s", f.Name, file)
			}
		}
		return nil
	}))
}
