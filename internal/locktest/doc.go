// Package locktest has helpers for tests of locks. It does not import relock, whose tests import it: it uses a lock by its
// methods, and by what is on Redis. The tests of package relock look into clients by export_test.go there.
package locktest
