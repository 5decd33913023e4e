//go:build race

package stage

import "time"

// slack is longer with the race detector, which needs processor time.
const slack = 800 * time.Millisecond
