// Package quorum is the protocol of a plain lock on several independent masters, by majority: the
// algorithm known as Redlock. It knows nothing of holds or waiters.
//
//   - quorum.go has the type, why two owners cannot both have a majority, and what it needs of its
//     client.
//   - protocol.go asks each question of the protocol, and says what the votes mean. It begins with the four
//     results, and with what each command does with a node that is silent.
//   - elect.go has the vote on who gets the keys, and the token that a majority has. state.go says what most
//     nodes say of a lock.
//   - ballot.go puts one question to the nodes, and counts. It begins with how a ballot goes.
//   - node.go has one node, and the line of commands for each name.
//   - server.go sees to it that no server has two votes.
//   - absent.go learns on which nodes a name never stood.
package quorum
