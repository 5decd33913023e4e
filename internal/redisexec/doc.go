// Package redisexec runs one script on one Redis deployment, and reports whether it was answered, and whether every copy
// of it was. All safety under lost replies depends on that. The package does not depend on locks.
//
//   - exec.go sends copies until one is answered, or the call is given up.
//   - flights.go has the copies of one call that are under way, and takes the first answer to any of them.
//   - call.go has what a call asks for, how it ended, and the command that go-redis sends for one copy.
//   - engine.go decides which way a copy goes to one Redis process.
//   - quick.go has the connection for commands that come alone; reply.go reads an answer that comes late there.
//   - lane.go is a way to a Redis process, which is replaced when it is silent.
//   - pipeline.go is the pipeline of a lane, and the only file that uses go-redis' experimental API for it.
//   - options.go has what our own connections take over from the application's.
//   - verdict.go judges the error of one copy: was it executed, may it be sent again?
//   - server.go knows what a server is called, and what was learned of it since it last answered.
//   - load.go has a script that Redis does not know sent in full by one call, not by all.
//   - replicas.go and confirmers.go wait for replicas to confirm what a script wrote.
//   - limits.go bounds requests in time, and aside.go runs what no caller waits for.
//   - late.go has commands on connections of their own keep their order, where that matters.
package redisexec
