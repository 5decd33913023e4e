// Package interop tests this library against Redisson itself: Java threads and goroutines
// that use the same locks.
//
// The directory java has a program that uses Redisson's locks as it is told, line by line.
// The tests start it, tell it what to do, and compare what either side sees. They need a
// redis-server, a JDK of version 17 or newer, and Maven, which fetches Redisson:
//
//	interop/run             build the program, and run the tests
//	interop/run -soak 10m   the same, with a longer soak
//
// Without the built program, which RELOCK_JAVA_PEER names, the tests are skipped; with
// RELOCK_REQUIRE_JAVA=1 they fail then.
package interop
