// Package redistest is the test bench of this module: real Redis servers as child
// processes, in-memory ones, Clusters and Sentinels, and a relay that loses, delays
// and withholds chosen commands or replies.
//
// Everything that a test starts through a testing.TB is stopped in its cleanup.
// Programs that have no testing.TB use the Start functions, which return errors.
//
// Three environment variables steer it: RELOCK_REDIS=host:port names a running server
// to share instead of starting one; RELOCK_REQUIRE_REDIS=1 turns "no server to be
// had, test skipped" into a failure, so that a CI run cannot pass by skipping;
// RELOCK_WITHOUT_PIPELINING=1 has the clients of tests do without the pipeline.
package redistest
