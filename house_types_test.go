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
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// indirections are the interfaces that at most one type of the module implements, and the type parameters with at most one
// argument. Each has a reason.
var indirections = []string{
	// Types of go-redis or of the standard library implement these.
	"internal/redisexec.processor",  // clients and connections
	"internal/wake.Cluster",         // *redis.ClusterClient, which renews its map by itself; tests write one, and count look-ups
	"internal/wake.Subscriber",      // every redis.UniversalClient
	"interface{NetConn() net.Conn}", // *tls.Conn
	"interface{Unwrap() []error}",   // the result of errors.Join

	".Option", // of the API: an option of clients and of handles

	// The local queue cannot name the type of its waiters: they are in the root, which imports it.
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
	require.Empty(t, checkModule(t).unused(), "only tests use these")
}

// module is the code of this module, checked: without its tests, fixtures and examples.
type module struct {
	packages map[string]*types.Package // by their paths
	info     types.Info
}

// left matches the packages that are left out.
var left = regexp.MustCompile(`/internal/\w+test$|/examples/`)

// checkModule type-checks the packages of this module in the order of their imports. What they import from elsewhere is
// read from the go command's cache.
func checkModule(t *testing.T) *module {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-json=ImportPath,Export,GoFiles,Dir,Module", "./...")
	list.Stderr = os.Stderr
	out, err := list.Output()
	require.NoError(t, err)
	m := &module{packages: make(map[string]*types.Package), info: types.Info{
		Defs: make(map[*ast.Ident]types.Object), Uses: make(map[*ast.Ident]types.Object),
		Instances: make(map[*ast.Ident]types.Instance), Types: make(map[ast.Expr]types.TypeAndValue),
	}}
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
		if p.Module == nil || !p.Module.Main || left.MatchString(p.ImportPath) {
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
	for _, o := range m.info.Defs {
		if o, is := o.(*types.TypeName); is && !o.IsAlias() {
			if typ, is := o.Type().(*types.Named); is && typ.TypeParams() == nil {
				all = append(all, typ)
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

// singleImplementations returns the interfaces that one type of the module implements, or none: those with names, and
// others as they are written.
func (m *module) singleImplementations() []string {
	all, by := m.types(), make(map[string]map[string]bool)
	note := func(title string, typ types.Type) {
		in, is := typ.Underlying().(*types.Interface)
		if !is || in.NumMethods() == 0 || !in.IsMethodSet() {
			return
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
	named := make(map[types.Type]bool)
	for _, typ := range all {
		named[typ.Origin().Underlying()] = true
		note(m.title(typ.Obj()), typ)
	}
	for _, expr := range m.info.Types {
		if in, is := expr.Type.(*types.Interface); is && expr.IsType() && !named[in] {
			note(in.String(), in)
		}
	}
	return single(by)
}

// single returns the keys with one value at most.
func single(by map[string]map[string]bool) []string {
	maps.DeleteFunc(by, func(_ string, values map[string]bool) bool { return len(values) > 1 })
	return slices.Sorted(maps.Keys(by))
}

// singleArguments returns the type parameters that stand for one type, or none, wherever the module uses what they are of.
func (m *module) singleArguments() []string {
	arguments := make(map[string]map[string]bool) // by parameter
	passed := make(map[string]map[string]bool)    // parameters that are arguments of others, by those
	titles := m.parameters()
	for _, title := range titles {
		arguments[title], passed[title] = make(map[string]bool), make(map[string]bool)
	}
	for id, instance := range m.info.Instances {
		of := m.info.Uses[id]
		if m.title(of) == "" {
			continue
		}
		for i := range instance.TypeArgs.Len() {
			to, arg := titles[parametersOf(of).At(i)], instance.TypeArgs.At(i)
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
	return single(arguments)
}

// parametersOf returns the type parameters of a type or function.
func parametersOf(o types.Object) *types.TypeParamList {
	if generic, is := o.Type().(interface{ TypeParams() *types.TypeParamList }); is {
		return generic.TypeParams()
	}
	return nil
}

// parameters returns the titles of the module's type parameters. Each method has its own for the type parameters of its receiver.
func (m *module) parameters() map[*types.TypeParam]string {
	titles := make(map[*types.TypeParam]string)
	note := func(of types.Object, list *types.TypeParamList) {
		for i := range list.Len() {
			titles[list.At(i)] = m.title(of) + "[" + parametersOf(of).At(i).Obj().Name() + "]"
		}
	}
	for _, o := range m.info.Defs {
		switch o := o.(type) {
		case *types.Func:
			note(o, parametersOf(o))
		case *types.TypeName:
			note(o, parametersOf(o))
			if typ, is := o.Type().(*types.Named); is {
				for method := range typ.Methods() {
					note(o, method.Signature().RecvTypeParams())
				}
			}
		}
	}
	return titles
}

// unused returns what the packages inside export, except fields, and no code of the module names. Methods that an interface
// needs are left out.
func (m *module) unused() (titles []string) {
	used := make(map[types.Object]bool)
	for _, o := range m.info.Uses {
		if f, is := o.(*types.Func); is {
			o = f.Origin()
		}
		used[o] = true
	}
	interfaces := m.interfaces()
	for _, o := range m.info.Defs {
		if o == nil || !o.Exported() || used[o] || !strings.HasPrefix(m.title(o), "internal/") {
			continue
		}
		if o.Parent() == o.Pkg().Scope() {
			titles = append(titles, m.title(o))
		} else if f, is := o.(*types.Func); is && f.Signature().Recv() != nil && !needs(interfaces, f) {
			titles = append(titles, m.title(f))
		}
	}
	return titles
}

// interfaces returns the interfaces that the module mentions, and those of the packages that it imports.
func (m *module) interfaces() map[*types.Interface]bool {
	all := make(map[*types.Interface]bool)
	note := func(typ types.Type) {
		if in, is := typ.Underlying().(*types.Interface); is && in.IsMethodSet() {
			all[in] = true
		}
	}
	for _, expr := range m.info.Types {
		note(expr.Type)
	}
	for _, p := range m.packages {
		for _, from := range p.Imports() {
			for _, name := range from.Scope().Names() {
				note(from.Scope().Lookup(name).Type())
			}
		}
	}
	return all
}

// ofErrors are the methods by which package errors looks into an error. It has no interfaces with names for them.
var ofErrors = []string{"As", "Is", "Unwrap"}

// needs reports whether the method makes its type implement one of the interfaces.
func needs(interfaces map[*types.Interface]bool, method *types.Func) bool {
	typ := method.Signature().Recv().Type()
	if _, is := typ.(*types.Pointer); !is {
		typ = types.NewPointer(typ)
	}
	for in := range interfaces {
		if o, _, _ := types.LookupFieldOrMethod(in, false, method.Pkg(), method.Name()); o != nil && types.Implements(typ, in) {
			return true
		}
	}
	return slices.Contains(ofErrors, method.Name())
}
