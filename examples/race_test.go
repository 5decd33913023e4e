//go:build race

package examples_test

func init() { raceFlags = []string{"-race"} }
