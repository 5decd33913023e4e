//go:build !race

package relock_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// indirections are the interfaces inside that one type implements, and the type parameters that stand for one type. The
// list only gets shorter: whoever removes one deletes its line.
var indirections = []string{
	"internal/queue.Queue[V]",
	"internal/queue.Ticket[V]",
}

func TestHouse_NoIndirectionHasASingleCase(t *testing.T) {
	redistest.Slow(t)
	m := checkModule(t)
	require.ElementsMatch(t, indirections, append(m.singleImplementations(), m.singleArguments()...), "list A has the expected ones, list B the ones that are there")
}

// What tests need of a package is in its export_test.go.
func TestHouse_ProductionCodeHasNothingForTests(t *testing.T) {
	redistest.Slow(t)
	require.Empty(t, checkModule(t).uncalled(), "only tests call these")
}

// module is the code of this module, checked: without its tests, fixtures and examples.
type module struct {
	packages map[string]*types.Package // by their paths
	info     types.Info
}

// checkModule type-checks the packages of this module in the order of their imports. What they import from elsewhere is
// read from the go command's cache.
func checkModule(t *testing.T) *module {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-json=ImportPath,Export,GoFiles,Dir,Module", "./...")
	list.Stderr = os.Stderr
	out, err := list.Output()
	require.NoError(t, err)
	m := &module{packages: make(map[string]*types.Package), info: types.Info{Instances: make(map[*ast.Ident]types.Instance), Uses: make(map[*ast.Ident]types.Object)}}
	files, exports := token.NewFileSet(), make(map[string]string)
	imports := importing{m.packages, importer.ForCompiler(files, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })}
	for packages := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath, Export, Dir string
			GoFiles                 []string
			Module                  *struct{ Main bool }
		}
		err := packages.Decode(&p)
		if errors.Is(err, io.EOF) {
			return m
		}
		require.NoError(t, err)
		exports[p.ImportPath] = p.Export
		if p.Module == nil || !p.Module.Main || strings.HasSuffix(p.ImportPath, "test") || strings.Contains(p.ImportPath, "/examples/") {
			continue
		}
		var parsed []*ast.File
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(files, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			parsed = append(parsed, file)
		}
		m.packages[p.ImportPath], err = (&types.Config{Importer: imports}).Check(p.ImportPath, files, parsed, &m.info)
		require.NoError(t, err)
	}
}

// importing imports the packages that are checked, and others from elsewhere.
type importing struct {
	checked   map[string]*types.Package
	elsewhere types.Importer
}

func (i importing) Import(path string) (*types.Package, error) {
	if p := i.checked[path]; p != nil {
		return p, nil
	}
	return i.elsewhere.Import(path)
}

// title is the name of what is declared in this module, with the folder of its package; "" for what is from elsewhere.
func (m *module) title(o types.Object) string {
	if o.Pkg() == nil || m.packages[o.Pkg().Path()] == nil {
		return ""
	}
	dir := strings.TrimPrefix(strings.TrimPrefix(o.Pkg().Path(), "github.com/relock-go/relock"), "/")
	return dir + "." + o.Name()
}

// types returns the named types of the module. A generic one is there with each of its arguments.
func (m *module) types() []*types.Named {
	var all []*types.Named
	for _, p := range m.packages {
		for _, name := range p.Scope().Names() {
			if o, is := p.Scope().Lookup(name).(*types.TypeName); is && !o.IsAlias() {
				if typ := o.Type().(*types.Named); typ.TypeParams() == nil {
					all = append(all, typ)
				}
			}
		}
	}
	for _, instance := range m.info.Instances {
		if typ, is := instance.Type.(*types.Named); is && m.title(typ.Obj()) != "" {
			all = append(all, typ)
		}
	}
	return all
}

// singleImplementations returns the interfaces that one type of the module implements. Interfaces of the API are left
// out: other modules may implement them.
func (m *module) singleImplementations() []string {
	all := m.types()
	by := make(map[string]map[string]bool)
	for _, typ := range all {
		in, is := typ.Underlying().(*types.Interface)
		title := m.title(typ.Obj())
		if !is || in.Empty() || !in.IsMethodSet() || typ.Obj().Exported() && !strings.HasPrefix(title, "internal/") {
			continue
		}
		if by[title] == nil {
			by[title] = make(map[string]bool)
		}
		for _, other := range all {
			if !types.IsInterface(other) && types.Implements(types.NewPointer(other), in) {
				by[title][m.title(other.Obj())] = true
			}
		}
	}
	maps.DeleteFunc(by, func(_ string, types map[string]bool) bool { return len(types) != 1 })
	return slices.Sorted(maps.Keys(by))
}

// singleArguments returns the type parameters that stand for one type wherever the module uses what they are of.
func (m *module) singleArguments() []string {
	arguments := make(map[string]map[string]bool) // by parameter
	passed := make(map[string]map[string]bool)    // parameters that are arguments of others, by those
	titles := m.parameters()
	for id, instance := range m.info.Instances {
		of := m.info.Uses[id]
		if m.title(of) == "" {
			continue
		}
		for i := range instance.TypeArgs.Len() {
			to, arg := titles[parametersOf(of.Type()).At(i)], instance.TypeArgs.At(i)
			if arguments[to] == nil {
				arguments[to], passed[to] = make(map[string]bool), make(map[string]bool)
			}
			if from, is := arg.(*types.TypeParam); is {
				passed[to][titles[from]] = true
			} else {
				arguments[to][arg.String()] = true
			}
		}
	}
	for range passed { // as often as there are parameters, which is as far as an argument can be passed on
		for to, from := range passed {
			for p := range from {
				maps.Copy(arguments[to], arguments[p])
			}
		}
	}
	maps.DeleteFunc(arguments, func(_ string, types map[string]bool) bool { return len(types) != 1 })
	return slices.Sorted(maps.Keys(arguments))
}

// parametersOf returns the type parameters of a generic type or function.
func parametersOf(typ types.Type) *types.TypeParamList {
	if named, is := typ.(*types.Named); is {
		return named.Origin().TypeParams()
	}
	return typ.(*types.Signature).TypeParams()
}

// parameters returns the titles of the module's type parameters. Each method has its own for the type parameters of its receiver.
func (m *module) parameters() map[*types.TypeParam]string {
	titles := make(map[*types.TypeParam]string)
	for _, p := range m.packages {
		for _, name := range p.Scope().Names() {
			o := p.Scope().Lookup(name)
			note := func(list *types.TypeParamList) {
				for i := range list.Len() {
					titles[list.At(i)] = m.title(o) + "[" + parametersOf(o.Type()).At(i).Obj().Name() + "]"
				}
			}
			switch typ := o.Type().(type) {
			case *types.Signature:
				note(typ.TypeParams())
			case *types.Named:
				note(typ.TypeParams())
				for method := range typ.Methods() {
					note(method.Signature().RecvTypeParams())
				}
			}
		}
	}
	return titles
}

// uncalled returns the exported functions and methods inside that no code of the module names, and that no interface needs.
func (m *module) uncalled() (titles []string) {
	called := make(map[types.Object]bool)
	for _, o := range m.info.Uses {
		if f, is := o.(*types.Func); is {
			called[f.Origin()] = true
		}
	}
	interfaces := m.interfaces()
	for _, p := range m.packages {
		for _, name := range p.Scope().Names() {
			o := p.Scope().Lookup(name)
			if !strings.HasPrefix(m.title(o), "internal/") {
				continue
			}
			if f, is := o.(*types.Func); is && f.Exported() && !called[f] {
				titles = append(titles, m.title(f))
			}
			typ, is := o.Type().(*types.Named)
			if _, declares := o.(*types.TypeName); !is || !declares {
				continue
			}
			for method := range typ.Methods() {
				if method.Exported() && !called[method] && !needs(interfaces, typ, method) {
					titles = append(titles, m.title(o)+"."+method.Name())
				}
			}
		}
	}
	return titles
}

// interfaces returns the interfaces of the module and of what it imports.
func (m *module) interfaces() []*types.Interface {
	all := []*types.Interface{types.Universe.Lookup("error").Type().Underlying().(*types.Interface)}
	for _, p := range m.packages {
		for _, from := range append(p.Imports(), p) {
			for _, name := range from.Scope().Names() {
				if in, is := from.Scope().Lookup(name).Type().Underlying().(*types.Interface); is && in.IsMethodSet() {
					all = append(all, in)
				}
			}
		}
	}
	return all
}

// ofErrors are the methods by which package errors looks into an error. It has no interfaces with names for them.
var ofErrors = []string{"As", "Is", "Unwrap"}

// needs reports whether the method makes its type implement one of the interfaces.
func needs(interfaces []*types.Interface, typ *types.Named, method *types.Func) bool {
	return slices.Contains(ofErrors, method.Name()) || slices.ContainsFunc(interfaces, func(in *types.Interface) bool {
		o, _, _ := types.LookupFieldOrMethod(in, false, method.Pkg(), method.Name())
		return o != nil && types.Implements(types.NewPointer(typ), in)
	})
}
