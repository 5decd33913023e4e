//go:build race && unix

package main_test

func init() { raceFlags = []string{"-race"} }
