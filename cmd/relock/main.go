// Command relock runs programs under a lock on Redis, and shows who holds which lock.
package main

import (
	"os"

	"github.com/relock-go/relock/cmd/relock/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
