// Package redistest is the test bench of this module: real Redis servers as child
// processes, in-memory ones, Clusters and Sentinels, and a relay that loses, delays
// and withholds chosen commands or replies.
//
// Everything that a test starts through a testing.TB is stopped in its cleanup.
// Programs that have no testing.TB use the Start functions, which return errors.
//
// Three environment variables steer it: RELOCK_REDIS=host:port names a running server
// to share instead of starting one; RELOCK_REQUIRE_REDIS=1 leaves no test of a real
// server out, neither where there is none, which is a failure then, nor those that
// need a machine with time for them, see [Timed];
// RELOCK_WITHOUT_PIPELINING=1 has the clients of tests do without the pipeline.
package redistest
