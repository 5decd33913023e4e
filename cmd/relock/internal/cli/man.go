package cli

import (
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

const manText = `Print the manual page of relock, or of one of its commands, from the same text as --help; or write all pages to a
directory.`

func (a *app) manCommand() *cobra.Command {
	dir := ""
	cmd := &cobra.Command{
		Use: "man [COMMAND]", Short: "Print the manual page", Long: manText,
		Example: "  relock man run | man -l -\n  relock man --dir /usr/local/share/man/man1",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("man takes one command, not %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			root.DisableAutoGenTag = true
			from := built()
			about := &doc.GenManHeader{Title: "RELOCK", Section: "1", Source: "relock " + from.version, Manual: "relock"}
			if date, err := time.Parse(time.RFC3339, from.date); err == nil { // else it has the date of today
				about.Date = &date
			}
			if dir != "" {
				if err := os.MkdirAll(dir, 0o755); err != nil {
					return usage("%w", err)
				}
				if err := doc.GenManTree(root, about, dir); err != nil {
					return usage("%w", err)
				}
				return nil
			}
			page := root
			if len(args) == 1 {
				var err error
				if page, _, err = root.Find(args); err != nil || page == root {
					return usage("unknown command %q", args[0])
				}
			}
			return doc.GenMan(page, about, a.out)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "write all pages to this `DIR`")
	return cmd
}
