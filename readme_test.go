package relock_test

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/pagetest"
	"github.com/relock-go/relock/internal/redistest"
)

// The two things that a newcomer does in a fresh clone: the gate does them, too.
func TestReadme_ShowsItsTwoCommandsInBlocksOfTheirOwn(t *testing.T) {
	commands := []string{"go run ./examples/quickstart\n", "go test ./...\n"}
	require.Subset(t, pagetest.Blocks(pagetest.Read(t, "README.md"), ""), commands)
	gate := pagetest.Read(t, ".ci/run")
	for _, command := range commands {
		require.Contains(t, gate, strings.TrimSpace(command))
	}
}

func TestDocs_CodeCompiles(t *testing.T) {
	for _, page := range pages(t) {
		if page != "docs/migrating.md" && len(pagetest.Blocks(pagetest.Read(t, page), "go")) > 0 { // see bench/migrating_test.go
			pagetest.RequireCode(t, page, "go", "example_test.go", "example_kinds_test.go", "recipes_test.go", "docs_test.go")
		}
	}
}

// exported returns the exported names that the package's own files declare at top level.
func exported(t *testing.T) map[string]bool {
	t.Helper()
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	names := make(map[string]bool)
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), ".go") || strings.HasSuffix(file.Name(), "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file.Name(), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				names[n.Name.Name] = true
				return false
			case *ast.ValueSpec:
				for _, name := range n.Names {
					names[name.Name] = true
				}
			case *ast.TypeSpec:
				names[n.Name.Name] = true
			}
			return true
		})
	}
	return names
}

func TestDocs_NameExistingCode(t *testing.T) {
	names := exported(t)
	mention := regexp.MustCompile(`\b(?:relock\.([A-Z]\w*)|((?:With(?:out)?|Err|New)[A-Z]\w*|[A-Z]\w*Mutex))\b`)
	for _, file := range append(pages(t), "doc.go", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md") {
		text := pagetest.Read(t, file)
		if file == "docs/migrating.md" { // its code and its first columns are about other libraries
			text = pagetest.Prose(text)
			text = regexp.MustCompile(`(?m)^\| [^|]*\|`).ReplaceAllString(text, "")
		}
		// Names of other packages do not count.
		text = regexp.MustCompile(`\b(redis|errors|context|http|miniredis|sync|election|fence|relocktest)\.\w+|\bInterProcessMutex\b`).ReplaceAllString(text, "")
		for _, m := range mention.FindAllStringSubmatch(text, -1) {
			require.True(t, names[m[1]+m[2]], "%s mentions %s", file, m[0])
		}
	}
}

// operations is the page that has a user's permissions.
const operations = "docs/operations.md"

// aclRule returns the words of its ACL SETUSER line.
func aclRule(t *testing.T) []string {
	t.Helper()
	for _, block := range pagetest.Blocks(pagetest.Read(t, operations), "") {
		if strings.HasPrefix(block, "ACL SETUSER orders ") {
			return strings.Fields(block)
		}
	}
	t.Fatal(operations, "has no ACL SETUSER line")
	return nil
}

// setUser sets a user up on every server.
func setUser(t *testing.T, rule []string, servers ...*redistest.Server) {
	t.Helper()
	for _, server := range servers {
		args := make([]any, len(rule))
		for i, word := range rule {
			args[i] = word
		}
		require.NoError(t, server.Client(t).Do(t.Context(), args...).Err())
	}
}

func TestDocs_PermissionsAreEnough(t *testing.T) {
	server := redistest.NewServer(t)
	setUser(t, aclRule(t), server)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr, Username: "orders", Password: "secret"})
	defer rdb.Close()
	useEverything(t, rdb, "7")
	useEverything(t, rdb, "{tag}:7")
	refused, err := server.Client(t).ACLLog(t.Context(), 10).Result()
	require.NoError(t, err)
	for _, entry := range refused {
		require.Equal(t, "client", strings.Split(entry.Object, "|")[0], "only go-redis' introduction may be refused")
	}
}

func TestDocs_PermissionsAreEnoughOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.NewCluster(t)
	setUser(t, append(aclRule(t), "+cluster|slots", "+command"), cluster.Nodes...)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{cluster.Nodes[0].Addr}, Username: "orders", Password: "secret",
	})
	defer rdb.Close()
	useEverything(t, rdb, "7")

	if redistest.Version() < 7 {
		return // there is no sharded pub/sub
	}
	more := regexp.MustCompile(`\+s(?:subscribe|unsubscribe|publish)\b`).FindAllString(pagetest.Read(t, operations), -1)
	require.Len(t, more, 3)
	setUser(t, append([]string{"ACL", "SETUSER", "orders"}, append(more, "-subscribe", "-unsubscribe", "-publish")...), cluster.Nodes...)
	useEverything(t, rdb, "8", relock.WithShardedPubSub())
}

func TestDocs_NoPermissionIsTooMuch(t *testing.T) {
	rule := aclRule(t)
	scripted := regexp.MustCompile(`(?:redis\.p?call\(|wake\()'([a-z]+)'`)
	used := map[string]bool{
		"eval": true, "evalsha": true, // by the executor
		"subscribe": true, "unsubscribe": true, "ping": true, // on the connection for messages
		"publish": true, // its name is an argument of the scripts
	}
	entries, err := os.ReadDir("internal/protocol/lua")
	require.NoError(t, err)
	for _, entry := range entries {
		for _, m := range scripted.FindAllStringSubmatch(pagetest.Read(t, "internal/protocol/lua/"+entry.Name()), -1) {
			used[m[1]] = true
		}
	}
	delete(used, "info") // of the nodes of a quorum, which do without
	allowed := make(map[string]bool)
	for _, word := range rule {
		if command, ok := strings.CutPrefix(word, "+"); ok {
			command, _, _ = strings.Cut(command, "|") // a script names what it does with it as an argument
			allowed[command] = true
		}
	}
	require.Equal(t, used, allowed)
}

// useEverything uses each script at least once, and fails if a waiter had to poll.
func useEverything(t *testing.T, rdb redis.UniversalClient, name string, opts ...relock.ClientOption) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	contended, renewed := make(chan struct{}, 8), make(chan struct{}, 1)
	open := func() *relock.Client {
		locks, err := relock.New(rdb, append(opts, relock.WithPrefix("orders:"), relock.WithFencing(),
			relock.WithSafetyPoll(time.Minute), // a wake-up that is not received takes longer than the test may
			relock.WithHooks(relock.Hooks{Contended: func(relock.Event) { contended <- struct{}{} }}))...)
		require.NoError(t, err)
		return locks
	}
	here, there := open(), open()
	m := here.Mutex(name, relock.WithRenewInterval(20*time.Millisecond), relock.WithHooks(relock.Hooks{
		Renewed: func(relock.Event) {
			select {
			case renewed <- struct{}{}:
			default:
			}
		},
	}))

	require.NoError(t, m.Lock(ctx))
	require.NoError(t, m.Lock(ctx)) // re-entry
	await(ctx, t, renewed, nil)
	passed := make(chan error, 2)
	for _, locks := range []*relock.Client{here, there} { // a hand-over, and a message
		go func() {
			passed <- locks.Mutex(name).Do(ctx, func(context.Context) error { return nil })
		}()
		await(ctx, t, contended, passed)
	}
	require.NoError(t, m.Unlock())
	require.NoError(t, m.Unlock())
	require.NoError(t, <-passed)
	require.NoError(t, <-passed)

	fair := here.FairMutex(name)
	require.NoError(t, fair.Lock(ctx))
	go func() {
		passed <- there.FairMutex(name).Do(ctx, func(context.Context) error { return nil })
	}()
	await(ctx, t, contended, passed)
	require.NoError(t, fair.Unlock())
	require.NoError(t, <-passed)

	readAndWrite(ctx, t, here.RWMutex(name+"/rw"), there.RWMutex(name+"/rw"), func() { await(ctx, t, contended, passed) })

	require.NoError(t, m.Lock(ctx))
	state, err := there.Mutex(name).State(ctx)
	require.NoError(t, err)
	require.Equal(t, m.FencingToken(), state.FencingToken)
	forced, err := here.Mutex(name).ForceUnlock(ctx)
	require.NoError(t, err)
	require.True(t, forced)
	require.ErrorIs(t, m.Unlock(), relock.ErrLost)
	require.NoError(t, here.Close())
	require.NoError(t, there.Close())
}

// readAndWrite uses each script of a read-write lock.
func readAndWrite(ctx context.Context, t *testing.T, here, there *relock.RWMutex, contended func()) {
	t.Helper()
	require.NoError(t, here.RLock(ctx))
	require.NoError(t, here.RLock(ctx))
	passed := make(chan error, 2)
	go func() { passed <- there.Do(ctx, func(context.Context) error { return nil }) }()
	contended()
	require.NoError(t, here.RUnlock())
	require.NoError(t, here.RUnlock())
	require.NoError(t, <-passed)

	require.NoError(t, here.Lock(ctx))
	go func() { passed <- here.Do(ctx, func(context.Context) error { return nil }) }() // a hand-over
	contended()
	go func() { passed <- there.RDo(ctx, func(context.Context) error { return nil }) }()
	contended()
	require.NoError(t, here.Unlock())
	require.NoError(t, <-passed)
	require.NoError(t, <-passed)

	require.NoError(t, here.Lock(ctx))
	require.NoError(t, here.RLock(ctx))
	require.NoError(t, here.Unlock())
	state, err := there.State(ctx)
	require.NoError(t, err)
	require.Len(t, state.Readers, 1)
	forced, err := there.ForceUnlock(ctx)
	require.NoError(t, err)
	require.True(t, forced)
	require.ErrorIs(t, here.RUnlock(), relock.ErrLost)
}

// await waits until it has happened; an error before that fails the test.
func await(ctx context.Context, t *testing.T, happened <-chan struct{}, failed <-chan error) {
	t.Helper()
	select {
	case <-happened:
	case err := <-failed:
		t.Fatal("too early:", err)
	case <-ctx.Done():
		t.Fatal(context.Cause(ctx))
	}
}

// Rivals are compared, and measured, in their newest versions.
func TestReadme_ComparesTheVersionsThatAreMeasured(t *testing.T) {
	measured, readme, migrating := pagetest.Read(t, "bench/go.mod"), pagetest.Read(t, "README.md"), pagetest.Read(t, "docs/migrating.md")
	for rival, module := range map[string]string{
		"redsync": "github.com/go-redsync/redsync/v4", "redislock": "github.com/bsm/redislock", "rueidislock": "github.com/redis/rueidis",
	} {
		version := regexp.MustCompile(`(?m)^\s*` + regexp.QuoteMeta(module) + ` (v\S+)$`).FindStringSubmatch(measured)
		require.NotNil(t, version, module)
		require.Contains(t, readme, rival+" "+version[1])
		require.Contains(t, migrating, rival+" "+version[1])
	}
}
