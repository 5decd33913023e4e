// Package pagetest compares Markdown pages with the code: what they show is compiled, and what they name is there.
package pagetest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Read returns a file.
func Read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}

var fence = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")

// Blocks returns what stands between fences of a language.
func Blocks(page, language string) []string {
	var found []string
	for _, m := range fence.FindAllStringSubmatch(page, -1) {
		if m[1] == language {
			found = append(found, m[2])
		}
	}
	return found
}

// Output returns what a page says that a command prints: the block of text after the block of the command.
func Output(t *testing.T, page, command string) string {
	t.Helper()
	_, after, found := strings.Cut(Read(t, page), "```\n"+command+"\n```\n\n```text\n")
	output, _, ends := strings.Cut(after, "```\n")
	require.True(t, found && ends, "%s shows no output of %s", page, command)
	return output
}

// Prose is a page without what stands between fences.
func Prose(page string) string { return fence.ReplaceAllString(page, "") }

// RequireCode requires that each block of a language in a page is somewhere in files that are compiled, and that the page
// has one.
func RequireCode(t *testing.T, page, language string, files ...string) {
	t.Helper()
	var compiled strings.Builder
	for _, file := range files {
		compiled.WriteString(flat(Read(t, file)) + "\n")
	}
	blocks := Blocks(Read(t, page), language)
	require.NotEmpty(t, blocks, page)
	for _, block := range blocks {
		require.True(t, strings.Contains(compiled.String(), flat(block)), "not in %v is this code of %s:\n%s", files, page, block)
	}
}

// flat returns code with each line trimmed and runs of blanks made one, so that a block is found wherever it is indented.
func flat(code string) string {
	lines := strings.Split(strings.TrimSpace(code), "\n")
	for i, line := range lines {
		lines[i] = strings.Join(strings.Fields(line), " ")
	}
	return strings.Join(lines, "\n")
}

// EachGoFile calls fn for each Go file of the module at root, in alphabetical order.
func EachGoFile(t *testing.T, root string, fn func(file string)) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			if _, err := os.Stat(filepath.Join(file, "go.mod")); file != root && err == nil {
				return filepath.SkipDir // a module of its own
			}
		case filepath.Ext(file) == ".go":
			fn(file)
		}
		return nil
	}))
}

// Declared reports whether the module at root declares a name, its tests apart: package.name, or type.member. Upper and
// lower case are the same: a page need not change when a name is exported.
func Declared(t *testing.T, root string) func(name string) bool {
	t.Helper()
	names := make(map[string]bool)
	EachGoFile(t, root, func(file string) {
		if strings.HasSuffix(file, "_test.go") {
			return
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		add := func(of, name string) { names[strings.ToLower(of+"."+name)] = true }
		members := func(of string, list *ast.FieldList) {
			for _, field := range list.List {
				for _, name := range field.Names {
					add(of, name.Name)
				}
			}
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv == nil {
					add(parsed.Name.Name, n.Name.Name)
				} else {
					add(receiver(n.Recv.List[0].Type), n.Name.Name)
				}
			case *ast.TypeSpec:
				add(parsed.Name.Name, n.Name.Name)
				switch typ := n.Type.(type) {
				case *ast.StructType:
					members(n.Name.Name, typ.Fields)
				case *ast.InterfaceType:
					members(n.Name.Name, typ.Methods)
				}
			}
			return true
		})
	})
	return func(name string) bool { return names[strings.ToLower(name)] }
}

// receiver returns the name of a method's type.
func receiver(typ ast.Expr) string {
	switch typ := typ.(type) {
	case *ast.StarExpr:
		return receiver(typ.X)
	case *ast.IndexExpr: // of a generic type
		return receiver(typ.X)
	case *ast.Ident:
		return typ.Name
	}
	return ""
}
