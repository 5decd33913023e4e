//go:build !race

package stage

import "time"

// slack is what the machine takes to run what is ready to.
const slack = 400 * time.Millisecond
