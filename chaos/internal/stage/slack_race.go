//go:build race

package stage

import "time"

// slack is more with the race detector: the processors have more to do.
const slack = 800 * time.Millisecond
