package relock_test

import (
	"flag"
	"fmt"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/pagetest"
)

// llms.txt and llms-full.txt are the documentation for language models, as https://llmstxt.org describes it: an
// index, and all pages in one file. Both are made from README.md and docs/.

var updateLLMs = flag.Bool("update-llms", false, "write llms.txt and llms-full.txt; `make llms` sets it")

const (
	repository = "https://github.com/relock-go/relock/blob/main/"
	rawFiles   = "https://raw.githubusercontent.com/relock-go/relock/main/"
)

func TestLLMs_FilesAreMadeFromTheDocs(t *testing.T) {
	for name, text := range map[string]string{"llms.txt": llmsIndex(t), "llms-full.txt": llmsFull(t)} {
		if *updateLLMs {
			require.NoError(t, os.WriteFile(name, []byte(text), 0o644))
		}
		require.True(t, pagetest.Read(t, name) == text, "%s is stale: run make llms", name)
	}
}

// docsRow is a row of the table in docs/README.md: | [choosing.md](choosing.md) | you choose a lock |
var docsRow = regexp.MustCompile(`(?m)^\| \[[^\]]+\]\(([^)]+)\) \| (.*) \|$`)

func llmsIndex(t *testing.T) string {
	readme, overview := pagetest.Read(t, "README.md"), pagetest.Read(t, "docs/README.md")
	summary := regexp.MustCompile(`(?m)^[A-Z].*$`).FindString(readme)
	require.NotEmpty(t, summary)
	var b strings.Builder
	fmt.Fprintf(&b, "# relock\n\n> %s\n\n", summary)
	b.WriteString("Install it with `go get github.com/relock-go/relock`. The API is at https://pkg.go.dev/github.com/relock-go/relock.\n" +
		"All pages below, except those of other modules and tools, are in one file: " + rawFiles + "llms-full.txt\n\n")
	fmt.Fprintf(&b, "## Documentation\n\n- [%s](%sREADME.md): what it is, what it promises, which lock, compared with other libraries\n", title(readme), rawFiles)
	rows := docsRow.FindAllStringSubmatch(overview, -1)
	require.NotEmpty(t, rows)
	for _, row := range rows {
		file := path.Join("docs", row[1])
		fmt.Fprintf(&b, "- [%s](%s%s): read it when %s\n", title(pagetest.Read(t, file)), rawFiles, file, row[2])
	}
	b.WriteString("\n## Other modules and tools\n\n")
	others := regexp.MustCompile(`\[([^\]]+)\]\(\.\./([^)]+)\) \(([^)]+)\)`).FindAllStringSubmatch(strings.Join(strings.Fields(overview), " "), -1)
	require.NotEmpty(t, others)
	for _, other := range others {
		fmt.Fprintf(&b, "- [%s](%s%s): %s\n", other[1], rawFiles, other[2], other[3])
	}
	return b.String()
}

func llmsFull(t *testing.T) string {
	files := []string{"README.md"}
	for _, row := range docsRow.FindAllStringSubmatch(pagetest.Read(t, "docs/README.md"), -1) {
		file := path.Join("docs", row[1])
		files = append(files, file)
		if dir, found := strings.CutSuffix(file, "README.md"); found { // a folder of pages
			pages, err := os.ReadDir(dir)
			require.NoError(t, err)
			for _, page := range pages {
				if page.Name() != "README.md" {
					files = append(files, path.Join(dir, page.Name()))
				}
			}
		}
	}
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	var b strings.Builder
	for _, file := range files {
		text := link.ReplaceAllStringFunc(pagetest.Read(t, file), func(s string) string {
			to := link.FindStringSubmatch(s)[1]
			switch {
			case strings.Contains(to, "://"):
				return s
			case strings.HasPrefix(to, "#"):
				return "](" + repository + file + to + ")"
			}
			return "](" + repository + path.Join(path.Dir(file), to) + ")"
		})
		fmt.Fprintf(&b, "<!-- %s%s -->\n\n%s\n", repository, file, text)
	}
	return b.String()
}

// title returns the first heading of a page.
func title(markdown string) string {
	heading, _, _ := strings.Cut(markdown, "\n")
	return strings.TrimPrefix(heading, "# ")
}
