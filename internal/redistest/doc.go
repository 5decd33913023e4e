// Package redistest is the test bench of this module: real Redis servers as child
// processes, in-memory ones, Clusters and Sentinels, and a relay that loses, delays
// and withholds chosen commands or replies.
//
// Everything that a test starts through a testing.TB is stopped in its cleanup.
// Programs that have no testing.TB use the Start functions, which return errors.
//
// It uses three environment variables. RELOCK_REDIS=host:port is a running server to share, instead of starting one. With
// RELOCK_REQUIRE_REDIS=1 no test of a real server is left out: without a server it fails, and tests that need a machine
// with time for them run, too (see [Timed]). With RELOCK_WITHOUT_PIPELINING=1 the clients of tests do not use the
// pipeline.
package redistest
