// Package quorum is the protocol of a plain lock on several independent masters, by majority: the
// algorithm known as Redlock. It does not depend on holds or waiters.
//
//   - quorum.go has the type, why two owners cannot both have a majority, and what it needs of its
//     client.
//   - protocol.go puts each question of the protocol, and defines what the votes mean. It begins with the four
//     results, and with what each command does if a node is silent.
//   - elect.go has the vote on who gets the keys, and the token of a majority. state.go has the state of a
//     lock by majority.
//   - ballot.go puts one question to the nodes, and counts. It begins with how a ballot goes.
//   - node.go has one node, and the line of commands for each name.
//   - server.go ensures that no server has two votes.
//   - absent.go records on which nodes a name never existed.
package quorum
