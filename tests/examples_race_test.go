//go:build race

package tests

func init() { raceFlags = []string{"-race"} }
