//go:build !race

package main

import "time"

// slack is what the machine takes to run who is ready to.
const slack = 400 * time.Millisecond
