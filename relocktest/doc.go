// Package relocktest gives tests the locks of the real library on an embedded Redis, and causes
// faults on demand.
//
//	locks := relocktest.New(t)
//	go work(ctx, locks)
//	relocktest.Lose(t, locks, "orders:42") // the context of the hold ends with relock.ErrLost
//
// The Redis is a miniredis that lives in memory: no socket, no process, nothing to install. Its keys
// expire as time passes. Nothing of the library is replaced, so what a test sees is what a
// program sees.
//
// # In a synctest bubble
//
// All of it works in a bubble of testing/synctest too, where an hour of renewals takes
// milliseconds: call [New] inside of the bubble. The client is closed in a cleanup of the test, before
// the bubble ends.
//
// # What it cannot do
//
// It is one server, without replicas: WithReplicas never has enough of them, and WithShardedPubSub
// fails the test. How the locks behave on a Cluster, behind Sentinel and on a quorum
// is not seen here.
package relocktest
