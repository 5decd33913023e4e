//go:build !race

package stage

import "time"

// slack is how long the machine may take to run a goroutine that is ready.
const slack = 400 * time.Millisecond
