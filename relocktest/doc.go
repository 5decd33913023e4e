// Package relocktest provides tests with the locks of the real library on an embedded Redis, and causes
// faults on demand.
//
//	locks := relocktest.New(t)
//	go work(ctx, locks)
//	relocktest.Lose(t, locks, "orders:42") // the context of the hold ends with relock.ErrLost
//
// The Redis is a miniredis in memory, without sockets or processes. There is nothing to install. Its
// keys expire as time passes. Nothing of the library is replaced, so a test sees what a program sees.
//
// # In a synctest bubble
//
// Everything also works in a bubble of testing/synctest, where an hour of renewals takes milliseconds.
// Call [New] inside the bubble. A cleanup of the test closes the client before the bubble ends.
//
// # Limits
//
// The Redis is one server without replicas. So WithReplicas never has enough replicas, and
// WithShardedPubSub fails the test. Tests with this package do not show how locks behave on a Cluster,
// behind Sentinel, or on a quorum.
package relocktest
