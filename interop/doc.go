// Package interop tests that this library and Redisson share locks: goroutines and Java threads use the
// same names.
//
// The directory java contains a program that uses Redisson's locks as its input commands, line by line.
// The tests start it, send it commands, and compare the results of both sides. They need a
// redis-server, a JDK of version 17 or later, and Maven, which fetches Redisson:
//
//	interop/run             build the program, and run the tests
//	interop/run -soak 10m   the same, with a longer soak
//
// RELOCK_JAVA_PEER is the path of the built program. If it is not set, the tests are skipped; with
// RELOCK_REQUIRE_JAVA=1 they fail instead.
package interop
