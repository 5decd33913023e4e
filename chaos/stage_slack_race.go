//go:build race

package main

import "time"

// slack is more with the race detector: the processors have more to do.
const slack = 800 * time.Millisecond
