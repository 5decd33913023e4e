package relock_test

import (
	"context"
	"errors"
	"io/fs"
	"log"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/fence"
	"github.com/relock-go/relock/internal/pagetest"
)

// What holds for README and the pages in docs/: their code runs, their links lead somewhere, and each option, error,
// hook and verb is defined in one place.

// pages are README and the pages of docs.
func pages(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, found)
	list := []string{"README.md"}
	for _, page := range found {
		list = append(list, filepath.ToSlash(page))
	}
	return list
}

// everyPage are all Markdown files of the repository.
func everyPage(t *testing.T) []string {
	t.Helper()
	var list []string
	require.NoError(t, filepath.WalkDir(".", func(file string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && entry.Name() == ".git" {
			return filepath.SkipDir
		}
		if err == nil && filepath.Ext(file) == ".md" {
			list = append(list, filepath.ToSlash(file))
		}
		return err
	}))
	return list
}

func TestDocs_LinksLeadSomewhere(t *testing.T) {
	links, anchors := 0, make(map[string][]string)
	for _, page := range everyPage(t) {
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(pagetest.Prose(pagetest.Read(t, page)), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			links++
			file, anchor, anchored := strings.Cut(m[1], "#")
			target := page
			if file != "" {
				target = path.Join(path.Dir(page), file)
			}
			_, err := os.Stat(target)
			require.NoError(t, err, "%s links to %s", page, m[1])
			if anchored {
				if anchors[target] == nil {
					anchors[target] = headings(pagetest.Read(t, target))
				}
				require.Contains(t, anchors[target], anchor, "%s links to %s", page, m[1])
			}
		}
	}
	require.Greater(t, links, 50)
}

// headings returns the anchors that GitHub makes of a page's headings.
func headings(markdown string) []string {
	var anchors []string
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(pagetest.Prose(markdown), -1) {
		kept := regexp.MustCompile(`[^\p{L}\p{N}_ -]`).ReplaceAllString(strings.ToLower(m[1]), "")
		anchors = append(anchors, strings.ReplaceAll(kept, " ", "-"))
	}
	return anchors
}

// A definition is a row of a table that begins with the name: | `WithTTL(d)` | … or | `ErrLost` | …
func TestDocs_DefineEachOptionErrorAndHookOnce(t *testing.T) {
	defined := make(map[string][]string)
	row := regexp.MustCompile("(?m)^\\| `([A-Z]\\w*)(?:\\([a-z, ]*\\))?` \\|")
	for _, page := range pages(t) {
		if page == "docs/migrating.md" { // its first columns are of other libraries
			continue
		}
		for _, m := range row.FindAllStringSubmatch(pagetest.Read(t, page), -1) {
			defined[m[1]] = append(defined[m[1]], page)
		}
	}
	for name := range exported(t) {
		if regexp.MustCompile(`^(With(out)?|Err)[A-Z]`).MatchString(name) {
			require.Len(t, defined[name], 1, "%s is defined in %v", name, defined[name])
		}
	}
	hooks := reflect.TypeFor[relock.Hooks]()
	for i := range hooks.NumField() {
		name := hooks.Field(i).Name
		require.Len(t, defined[name], 1, "%s is defined in %v", name, defined[name])
	}
}

// A definition of a verb of the command is a row that begins with it: | `relock run …` | …
func TestDocs_DefineEachVerbOfTheCommandOnce(t *testing.T) {
	files, err := filepath.Glob("cmd/relock/internal/cli/*.go")
	require.NoError(t, err)
	verb := regexp.MustCompile(`Use: "(\w+)[^"]*", Short: "[^"]*", Long: \w+Text,\n`)
	docs := ""
	for _, page := range pages(t) {
		docs += pagetest.Read(t, page)
	}
	verbs := 0
	for _, file := range files {
		for _, m := range verb.FindAllStringSubmatch(pagetest.Read(t, file), -1) {
			verbs++
			rows := regexp.MustCompile("(?m)^\\| `relock "+m[1]+"[^`|]*` \\|").FindAllString(docs, -1)
			require.Len(t, rows, 1, "relock %s", m[1])
		}
	}
	require.NotZero(t, verbs)
}

// Pages name tests as evidence: a test that is renamed takes its mentions along.
func TestDocs_NameTestsThatExist(t *testing.T) {
	tests := make(map[string]bool)
	require.NoError(t, filepath.WalkDir(".", func(file string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(file, "_test.go") {
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(pagetest.Read(t, file), -1) {
				tests[m[1]] = true
			}
		}
		return err
	}))
	named := 0
	for _, page := range everyPage(t) {
		for _, m := range regexp.MustCompile("`(Test[A-Z]\\w*)`").FindAllStringSubmatch(pagetest.Prose(pagetest.Read(t, page)), -1) {
			named++
			require.True(t, tests[m[1]], "%s names %s", page, m[1])
		}
	}
	require.NotZero(t, named)
}

func TestReadme_ItsCommandsOfBenchHaveTheFlagsOfBench(t *testing.T) {
	known := make(map[string]bool)
	for _, m := range regexp.MustCompile(`flags\.\w+\((?:&c\.\w+, )?"(\w+)"`).FindAllStringSubmatch(pagetest.Read(t, "bench/main.go"), -1) {
		known[m[1]] = true
	}
	commands := regexp.MustCompile("`go run -C bench \\. ([^`]*)`").FindAllStringSubmatch(pagetest.Read(t, "README.md"), -1)
	require.NotEmpty(t, commands)
	for _, m := range commands {
		for _, flag := range regexp.MustCompile(`(?:^| )-(\w+)`).FindAllStringSubmatch(m[1], -1) {
			require.True(t, known[flag[1]], "%s: bench has no flag %s", m[1], flag[1])
		}
	}
}

func TestReadme_QuickstartReportsALoss(t *testing.T) {
	rdb, stop := startRedis()
	defer stop()
	quickstart := func(ctx context.Context, ship func(context.Context) error) error {
		locks, err := relock.New(rdb) // rdb: your go-redis v9 client
		if err != nil {
			return err
		}
		defer locks.Close()

		err = locks.Mutex("orders:42").Do(ctx, ship) // ship's context ends when the lock is lost
		if errors.Is(err, relock.ErrLost) {
			log.Print("another process may have shipped order 42, too")
		}
		return err
	}
	require.NoError(t, quickstart(t.Context(), func(context.Context) error { return nil }))
	require.ErrorIs(t, quickstart(t.Context(), func(ctx context.Context) error {
		return takeAway(ctx, rdb, "orders:42")
	}), relock.ErrLost)
}

// takeAway ends a hold, as another process would.
func takeAway(ctx context.Context, rdb *redis.Client, name string) error {
	other, err := relock.New(rdb)
	if err != nil {
		return err
	}
	defer other.Close()
	_, err = other.Mutex(name).ForceUnlock(ctx)
	return err
}

func TestReadme_RefusesALateFencedWrite(t *testing.T) {
	rdb, stop := startRedis()
	defer stop()
	locks, err := relock.New(rdb)
	require.NoError(t, err)
	defer locks.Close()
	save := func(ctx context.Context, body string) error {
		m := locks.Mutex("draft:7", relock.WithFencing())
		return m.Do(ctx, func(ctx context.Context) error {
			return fence.Set(ctx, rdb, m.FencingToken(), "draft:7:body", body, 0)
		})
	}
	late := locks.Mutex("draft:7", relock.WithFencing())
	require.NoError(t, late.Lock(t.Context()))
	token := late.FencingToken()
	require.NoError(t, late.Unlock())
	require.NoError(t, save(t.Context(), "next"))
	require.ErrorIs(t, fence.Set(t.Context(), rdb, token, "draft:7:body", "late", 0), fence.ErrStale)
	require.Equal(t, "next", rdb.Get(t.Context(), "draft:7:body").Val())
}
