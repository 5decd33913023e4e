// Package keys derives from the names of a lock the keys and channels that it has on Redis, and
// defines which of them have to be in one Cluster slot. It also has the names of holds.
//
//   - set.go has the [Set]: all that a handle locks, made once.
//   - names.go has the prefixes, Redisson's and our own, and the rules of hash tags.
//   - kinds.go has what read-write locks and semaphores have besides.
//   - owner.go has the fields of the hash, which name who holds: <uuid>:<owner>, and what may follow.
//   - identity.go has the names of holds: one name, one life.
//   - nodes.go has a set of nodes of a quorum, for names that are not on all of them.
//
// The layout is part of the version contract: processes with another version, and Java, use the same names.
package keys
