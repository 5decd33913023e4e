// Package stage plays rounds. In each round it starts client processes, with a relay on every link between them and the
// servers, and injects faults while they use locks. Then it lets them continue without faults, stops them, looks for remains,
// and lets package check judge the history.
//
// It is independent of scenarios: a [Plan] contains the workload, the faults, and the promises besides the invariants. It is
// also independent of locks: package worker uses them, in processes of their own, and package check judges them. The files:
//
//   - plan.go: the input: a Plan, its Setups, and their Faults
//   - stage.go: the Stage, which plays a plan in rounds
//   - round.go: one round, from its first process to its last key
//   - journal.go: the events of processes and director in a round
//   - process.go, signal*.go: a client process, and its relays
//   - director.go: which fault is injected when
//   - act.go: one injection of a fault, and what a fault can do
//   - judge.go, slack*.go: the verdict on a round's history
//   - evidence.go: the input of a plan's own check
//   - result.go: the result of a plan
package stage
