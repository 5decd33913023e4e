package relock_test

import (
	"go/build"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ranks of the packages of this module. Each imports packages of lower ranks only.
var ranks = map[string]int{
	"internal/clock": 0, "internal/goid": 0, "internal/guard": 0, "internal/lockerr": 0, "internal/queue": 0,
	"internal/group": 1, "internal/keys": 1, "internal/wake": 1,
	"internal/redisexec": 2, "fence": 2,
	"internal/protocol": 3, "internal/undo": 3,
	"internal/lease": 4, "internal/vain": 4, "internal/line": 4, "internal/quorum": 4,
	"internal/gate": 5,
	".":             6,
	"election":      7, "relocktest": 7,
}

// mostFiles is how many files the root may have, tests apart: each is one idea.
const mostFiles = 22

func TestPackagesImportLowerRanksOnly(t *testing.T) {
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

func TestEachPackageOfTheHouseHasARank(t *testing.T) {
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
	root, err := build.ImportDir(".", 0)
	require.NoError(t, err)
	require.LessOrEqual(t, len(root.GoFiles), mostFiles)
}
