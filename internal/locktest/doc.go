// Package locktest is what the tests of package relock share with those in folder tests. It does not import relock,
// which imports it in its tests: it knows a lock by its methods and by what is on Redis. What a client has in memory is
// for the tests in its package: see export_test.go there.
package locktest
