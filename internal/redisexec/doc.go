// Package redisexec runs one script on one Redis deployment, and reports whether it was answered, and whether every copy was
// answered. All safety under lost replies depends on that. The package is independent of locks.
//
//   - exec.go sends copies until one is answered, or the call is given up.
//   - flights.go has the copies of one call in flight, and takes the first answer to any of them.
//   - call.go has the options and the outcome of a call, and the command that go-redis sends for one copy.
//   - engine.go chooses the route of a copy to one Redis process.
//   - lane.go has a route to a Redis process, which is replaced when it is silent.
//   - pipeline.go is the pipeline of a lane; wire.go writes commands to its connection, and reads replies, which reply.go parses;
//     lone.go has commands that come alone, and peek.go looks at a connection on which nothing is in flight.
//   - options.go derives the options of the library's connections from the application's.
//   - verdict.go judges the error of one copy: was it executed, may it be sent again?
//   - names.go has the names of servers in errors.
//   - server.go has the name of a server, and its most informative failure since it last answered.
//   - script.go has a script, and makes one call send it in full if Redis does not have it, not all calls.
//   - replicas.go and confirmers.go wait until replicas confirm the writes of a script.
//   - limits.go bounds requests in time, and aside.go runs functions for which no caller waits.
//   - late.go keeps the order of commands on separate connections, if it matters.
package redisexec
