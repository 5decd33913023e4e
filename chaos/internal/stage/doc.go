// Package stage plays rounds. In each it starts client processes, with a relay on every link
// between them and the servers, injects faults while they use locks, lets them go on in calm,
// stops them, looks for what is left, and has the history judged.
//
// It knows no scenario: what is played, with which faults, and what has to be kept besides the
// invariants, comes with a [Plan]. It knows no lock either: package worker uses them, in
// processes of their own, and package check says what is right. The files:
//
//   - plan.go: what a caller brings: a Plan, its Setups, and their Faults
//   - stage.go: the Stage, which plays a plan in rounds
//   - round.go: one round, from its first process to its last key
//   - journal.go: what processes and director have told in a round
//   - process.go, signal*.go: a client process, and its relays
//   - director.go: which fault is injected when
//   - act.go: one injection of a fault, and what a fault can do
//   - judge.go, slack*.go: what a round's history shows
//   - evidence.go: what a plan's own check is shown of it
//   - result.go: what became of a plan
package stage
