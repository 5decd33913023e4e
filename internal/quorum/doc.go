// Package quorum is the protocol of a plain lock on several independent masters, by majority: the
// algorithm known as Redlock. It does not depend on holds or waiters.
//
//   - quorum.go has the type, the reason why two owners cannot both have a majority, and what a quorum needs of its
//     client.
//   - protocol.go puts each question of the protocol, and defines what the votes mean. It begins with the four results,
//     and with what each command does if a node is silent.
//   - elect.go has the vote on the owner of the keys, and the token of a majority. state.go has the state of a lock by
//     majority.
//   - ballot.go puts one question to the nodes, and counts the votes.
//   - node.go has one node, and the queue of commands for each name.
//   - server.go ensures that no server has two votes.
//   - absent.go records on which nodes a name never existed.
package quorum
