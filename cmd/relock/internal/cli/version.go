package cli

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// release is the version of a released program, which .goreleaser.yaml sets. The Go command cannot derive it: the tag of this
// module's version is on the commit after the one that a release is built from.
var release string

// origin is what a program was built from.
type origin struct {
	version, commit, date string
	modified              bool // the tree had changes that the commit lacks
}

// built returns what this program was built from.
func built() origin {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = new(debug.BuildInfo)
	}
	return originOf(info, release)
}

func originOf(info *debug.BuildInfo, release string) origin {
	const unknown = "unknown"
	o := origin{version: cmp.Or(release, info.Main.Version, unknown), commit: unknown, date: unknown}
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			o.commit = setting.Value
		case "vcs.time":
			o.date = setting.Value
		case "vcs.modified":
			o.modified = setting.Value == "true"
		}
	}
	return o
}

func (o origin) String() string {
	commit := o.commit
	if o.modified {
		commit += ", modified"
	}
	return fmt.Sprintf("version  %s\ncommit   %s\ndate     %s\nbuilt    with %s for %s/%s\n",
		o.version, commit, o.date, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

const versionText = `Print the version of relock, the commit that it was built from, and the date of the commit. After go install the commit
is unknown: the version determines it.`

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version, the commit and its date", Long: versionText,
		Args: exactly(0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprint(a.out, built())
			return err
		},
	}
}
