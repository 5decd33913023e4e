package mutant

// All are the mutants.
var All = []Mutant{
	// Commands to Redis.
	{
		Name:   "acquire-increments",
		Breaks: "an acquisition increments the hold count instead of setting it to 1: a repeated copy counts twice",
		Edits: []Edit{
			{Old: "'hset'", New: "'hincrby'"},
			{Old: " and ", New: " and redis.call('hincrby', KEYS[i], field, 1) and "},
			{Old: " and ", New: " and redis.call('hincrby', lock, field, 1) and "},
		},
		Catch: []string{"counted-twice"},
	},
	{
		Name:   "renew-no-owner",
		Breaks: "a renewal lengthens the lease, whichever owner has the lock",
		Edits: []Edit{
			{Old: "if … then", New: "if redis.call('exists', KEYS[i]) == 0 then"},
			{Old: "'hexists', …)", New: "'exists', KEYS[i])"},
		},
		Catch: []string{"deleted-while-held"},
	},
	{
		Name:   "renew-recreates",
		Breaks: "a renewal that does not find the lock creates it again",
		Edits: []Edit{
			{Old: "return 0", New: "redis.call('hset', KEYS[i], field, 1)"},
			{Old: "))", New: ") or call('hset', KEYS[i], field, 1) == 1)"},
		},
		Catch: []string{"deleted-while-held"},
	},
	{
		Name:   "renew-many-ignores-loss",
		Breaks: "the loss of a hold that is renewed together with others is ignored",
		Edits: []Edit{
			{Old: "Contains(…,", New: "Contains([]int(nil),"},
			{Old: "10", New: "1"},
		},
		Catch: []string{"deleted-in-a-bundle"},
	},
	{
		Name:   "fence-incr",
		Breaks: "a fencing token is only a counter on Redis: it starts again when the counter is lost",
		Edits:  []Edit{{Old: "= …", New: "= 1"}},
		Catch:  []string{"data-deleted", "deleted-while-held"},
	},
	{
		Name:   "release-no-owner",
		Breaks: "a release deletes the lock, whichever owner has it",
		Edits: []Edit{
			{Old: "if … then", New: "if redis.call('exists', KEYS[i]) == 0 then"},
			{Old: "'hdel', …)", New: "'del', KEYS[i])"},
			{Old: "'hdel', KEYS[1], ARGV[1]", New: "'del', KEYS[1]"},
			{Old: "= …", New: "= redis.call('exists', lock) == 1"},
			{Old: "'hdel', …)", New: "'del', lock)"},
		},
		Catch: []string{"acquire-reply-lost", "release-reply-lost", "late-release"},
	},
	{
		Name:   "handoff-no-token",
		Breaks: "a hand-over creates no token: the next holder gets the token of the previous one",
		Edits: []Edit{{New: `local token, bad = 0
for i = n + 1, #KEYS do token = math.max(token, tonumber(redis.call('get', KEYS[i])) or 0) end`}},
		Catch: []string{"calm"},
	},
	{
		Name:   "poll-mints-again",
		Breaks: "a poll that finds the lock granted creates a token of its own: the message of the grant has another one",
		Edits: []Edit{
			{Old: "= …", New: "= token_for(keep)"},
			{Old: "if … or", New: "if true or"},
		},
		Catch: []string{"calm"},
	},
	{
		Name:   "rename-recreates",
		Breaks: "a rename that does not find the lock creates it again",
		Edits:  []Edit{{Old: "return {0, i}", New: "passed[i] = redis.call('hset', KEYS[i], to, '1')"}},
		Catch:  []string{"batches-deleted"},
	},
	{
		Name:   "batch-own-lease",
		Breaks: "a hold that follows another begins with a lease of its own, which no answer has proven",
		Edits:  []Edit{{New: "h.lease.Grant(h.session.now(), max(h.settings.TTL, l.Left(h.session.now())))"}},
		Catch:  []string{"batches-slow-then-silent"},
	},
	{
		Name:   "batch-unknown-name-reused",
		Breaks: "the names of a rename whose outcome is unknown are used again",
		Edits: []Edit{
			{},
			{},
		},
		Catch: []string{"batches-late"},
	},

	{
		Name:   "linger-name-reused",
		Breaks: "an owner asks for the lock under a name that Redis still has, for the hold that followed in its batch",
		Edits:  []Edit{{Old: "if …{", New: "if false && …{"}},
		Catch:  []string{"linger-slow"},
	},

	// Commands without an answer.
	{
		Name:   "wanted-unannounced",
		Breaks: "a waiter does not announce itself: the holder does not learn that its lock is wanted",
		Edits:  []Edit{{}, {}, {}},
		Catch:  []string{"wanted-calm"},
	},
	{
		Name:   "uuid-never-retired",
		Breaks: "a name is used again although a command under it may still be in flight",
		Edits:  []Edit{{Old: "== …{", New: "== nil {"}},
		Catch:  []string{"late-release"},
	},
	{
		Name:   "go-redis-resends",
		Breaks: "go-redis sends commands again by itself, and the library does not notice",
		Edits:  []Edit{{Old: "true", New: "false"}},
		Catch:  []string{"release-lost-alone"},
	},
	{
		Name:   "answer-of-another",
		Breaks: "the answer to a command that was given up is taken for that of the next command on the connection",
		Edits:  []Edit{{New: "w.alone, w.written, w.inFlight = nil, w.written[1:], w.inFlight-1"}},
		Catch:  []string{"slow-cancels", "release-lost"},
	},
	{
		Name:   "undo-dropped",
		Breaks: "the remains of an acquisition that was given up are not undone on Redis",
		Edits:  []Edit{{}},
		Catch:  []string{"slow-orphans"},
	},

	// The local state of a hold.
	{
		Name:   "deadline-from-reply",
		Breaks: "the lease counts from when the reply came, not from when the request was sent",
		Edits:  []Edit{{Old: "{", New: "{ out.Sent = x.Now()"}},
		Catch:  []string{"slow-then-silent"},
	},
	{
		Name:   "clock-not-asked",
		Breaks: "a hold whose lease has run out is valid until its watchdog has run",
		Edits:  []Edit{{}},
		Catch:  []string{"client-paused"},
	},
	{
		Name:   "context-ends-late",
		Breaks: "the context of a hold ends when its release was answered",
		Edits: []Edit{{Old: "x.cancel(", New: `func(cause error) {
if p != ending {
x.cancel(cause)
return
}
released := h.changes()
go func() { <-released; x.cancel(cause) }()
}(`}},
		Catch: []string{"slow-holder"},
	},
	{
		Name:   "reentry-not-counted",
		Breaks: "a re-entry does not raise the hold count on Redis",
		Edits:  []Edit{{Old: "++", New: " += 0"}},
		Catch:  []string{"calm"},
	},
	{
		Name:   "loss-forgotten",
		Breaks: "Lock inside a lost hold acquires the lock again, and the outer levels count as held",
		Edits: []Edit{{New: `h.unregister()
return errAgain`}},
		Catch: []string{"misuse"},
	},
	{
		Name:   "unlock-hides-loss",
		Breaks: "Unlock of a lost hold reports success",
		Edits:  []Edit{{Old: ":= …,", New: ":= error(nil),"}},
		Catch:  []string{"client-paused", "misuse"},
	},

	// Waiting.
	{
		Name:   "no-poll",
		Breaks: "a waiter sleeps until a message comes, and messages get lost",
		Edits: []Edit{
			{New: "return time.Hour"},
			{Old: "min(", New: "max(time.Hour, "},
		},
		Catch: []string{"client-killed", "subscribers-silent"},
	},
	{
		Name:   "handoff-to-gone-waiter",
		Breaks: "the lock is handed over to a waiter that has given up",
		Edits:  []Edit{{Old: "if … {", New: "if false {"}},
		Catch:  []string{"slow-cancels"},
	},
	{
		Name:   "wakeup-consumed",
		Breaks: "the wake-up is lost if the first waiter of the local queue leaves",
		Edits: []Edit{
			{Old: "…", New: "next.fresh = false; …"},
			{Old: "(…);", New: "(a.longestSleep);"},
		},
		Catch: []string{"quorum-slow-wakeups"},
	},

	// The order of waiters.
	{
		Name:   "fair-last-first",
		Breaks: "a fair lock is granted to the waiter that came last",
		Edits: []Edit{
			{Old: "'zrange'", New: "'zrevrange'"},
			{Old: "'zrange'", New: "'zrevrange'"},
		},
		Catch: []string{"fair-calm"},
	},
	{
		Name:   "fair-overtaken",
		Breaks: "an owner that finds a fair lock free takes it, although others wait",
		Edits:  []Edit{{Old: " then", New: " and redis.call('exists', lock) == 1 then"}},
		Catch:  []string{"fair-and-plain"},
	},
	{
		Name:   "fair-dead-served",
		Breaks: "an entry in the line never expires: a fair lock is granted to a dead process",
		Edits: []Edit{
			{Old: " and … and", New: " and"},
			{Old: " or … then", New: " then"},
		},
		Catch: []string{"fair-waiters-stop"},
	},
	{
		Name:   "fair-entry-left",
		Breaks: "a waiter that gives up leaves its entry in the line",
		Edits:  []Edit{{}},
		Catch:  []string{"fair-calm"},
	},

	// The line of processes.
	{
		Name:   "line-newcomers-pass",
		Breaks: "an owner that finds the lock free acquires it, even if the line has entries",
		Edits:  []Edit{{Old: "'exists', KEYS[1], KEYS[3] or KEYS[1]", New: "'exists', KEYS[1]"}},
		Catch:  []string{"line-calm"},
	},
	{
		Name:   "line-grant-without-owner",
		Breaks: "a release by an owner that does not hold the lock grants it to the first in line",
		Edits:  []Edit{{Old: " and … then", New: " then"}},
		Catch:  []string{"calm"},
	},
	{
		Name:   "async-name-reused",
		Breaks: "an owner whose Unlock has returned sends a request under the same name before the release is answered",
		Edits:  []Edit{{}},
		Catch:  []string{"async-slow"},
	},
	{
		Name:   "line-entry-left",
		Breaks: "a waiter that gives up leaves the entry of its process in the line, and no other waiter takes it over",
		Edits:  []Edit{{New: "t.line.waiter.drop()"}},
		Catch:  []string{"calm"},
	},
	{
		Name:   "line-foreign-turn-endless",
		Breaks: "the turn of foreign waiters never ends",
		Edits: []Edit{
			{Old: "if … then", New: "if false then"},
			{New: "return 60000"},
		},
		Catch: []string{"calm"},
	},
	{
		Name:   "line-poll-renews-nothing",
		Breaks: "a poll does not extend the lease of an entry",
		Edits:  []Edit{{Old: ", …,", New: ", till,"}},
		Catch:  []string{"line-long-holds"},
	},
	{
		Name:   "line-poll-claims-subscribed",
		Breaks: "a poll marks its process as subscribed although it is not: the entry is skipped again and again",
		Edits:  []Edit{{Old: "'2'", New: "'0'"}},
		Catch:  []string{"line-cannot-subscribe"},
	},
	{
		Name:   "multi-keeps-forever",
		Breaks: "a MultiMutex keeps the keys that it was granted until it gets the rest",
		Edits:  []Edit{{New: "return false"}},
		Catch:  []string{"line-of-several"},
	},

	// Min holds, readers and writers.
	{
		Name:   "min-hold-ignored",
		Breaks: "an early Unlock releases the lock before the end of its min hold",
		Edits:  []Edit{{Old: "<= 0", New: "< time.Hour"}},
		Catch:  []string{"min-holds"},
	},
	{
		Name:   "min-hold-expiry-first",
		Breaks: "a placeholder gets its expiry before its field: if the expiry is very short, the key is created again, without expiry",
		Edits: []Edit{{New: `redis.call('pexpire', KEYS[i], rest)
local refused = redis.call('hset', KEYS[i], to, '1') and nil`}},
		Catch: []string{"min-holds-of-a-moment"},
	},
	{
		Name:   "reader-joins-writer",
		Breaks: "a reader gets the lock while another owner writes",
		Edits:  []Edit{{}},
		Catch:  []string{"sides-calm"},
	},
	{
		Name:   "writer-ends-readers",
		Breaks: "the release of a writer ends the holds of readers that go on",
		Edits:  []Edit{{New: "redis.call('del', lock)"}},
		Catch:  []string{"sides-calm"},
	},
	{
		Name:   "reader-never-dies",
		Breaks: "the lease of a reader has no end: a dead reader is never removed",
		Edits: []Edit{
			{Old: ", 'px', ARGV[3]"},
			{Old: ", 'px', …)", New: ")"},
		},
		Catch: []string{"sides-harmed"},
	},
	{
		Name:   "writer-starves",
		Breaks: "new readers get the lock while a writer waits",
		Edits:  []Edit{{Old: " >= … then", New: " < 0 then"}},
		Catch:  []string{"readers-stream"},
	},
	{
		Name:   "writer-cannot-read",
		Breaks: "a writer may not read if its client has got a new identity since",
		Edits: []Edit{{New: `writes := a.hold.other.field()
if writes != "" {
writes = n.Field + keys.WriteSuffix
}`}},
		Catch: []string{"sides-harmed"},
	},

	// Permits.
	{
		Name:   "permit-over-limit",
		Breaks: "a permit is granted if the limit is exceeded by one",
		Edits: []Edit{
			{Old: "tonumber(ARGV[3])", New: "tonumber(ARGV[3]) + 1"},
			{Old: " then", New: " + 1 then"},
			{Old: " then", New: " + 1 then"},
		},
		Catch: []string{"permits-calm"},
	},
	{
		Name:   "permit-weight-forgotten",
		Breaks: "every permit counts as one",
		Edits:  []Edit{{Old: ", … do", New: ", 1 do"}},
		Catch:  []string{"permits-calm"},
	},
	{
		Name:   "permit-live-dropped",
		Breaks: "a permit is removed a second before the end of its lease",
		Edits: []Edit{
			{Old: " then", New: " + 1000 then"},
			{Old: " then", New: " + 1000 then"},
		},
		Catch: []string{"permits-expire"},
	},
	{
		Name:   "permit-expired-live",
		Breaks: "a permit whose lease is over counts until the key expires",
		Edits:  []Edit{{Old: "if … then", New: "if true then"}},
		Catch:  []string{"permits-expire"},
	},
	{
		Name:   "permit-renew-recreates",
		Breaks: "a renewal brings back a permit that is lost",
		Edits: []Edit{
			{Old: "not (… and", New: "not (true and"},
			{Old: "if … then", New: "if true then"},
			{Old: "'XX', "},
		},
		Catch: []string{"permits-deleted"},
	},
	{
		Name:   "permit-release-no-owner",
		Breaks: "a release ends the permit that ends first, whoever has it",
		Edits: []Edit{
			{Old: "'zrem', KEYS[1], ARGV[1]", New: "'zrem', KEYS[1], first[1]"},
			{Old: ", …)", New: ", member('0'))"},
		},
		Catch: []string{"permits-calm"},
	},
	{
		Name:   "permit-one-head",
		Breaks: "a script serves the first in line only, although others fit, too",
		Edits:  []Edit{{Old: "= …", New: "= not next(served) and … or nil"}},
		Catch:  []string{"permits-at-once"},
	},
	{
		Name:   "permit-min-hold-unannounced",
		Breaks: "the first in line does not learn that a permit was released, and stays reserved until its min hold ends",
		Edits:  []Edit{{Old: "if … and", New: "if false and"}},
		Catch:  []string{"permits-kept"},
	},
	{
		Name:   "permit-overtakes",
		Breaks: "a small request that fits is served before a large one that waits",
		Edits:  []Edit{{Old: "if … or", New: "if"}},
		Catch:  []string{"permits-calm"},
	},

	// Deadlocks.
	{
		Name:   "deadlock-unconfirmed",
		Breaks: "a deadlock counts at the first sight, by waits that may be over",
		Edits: []Edit{
			{Old: "case …:", New: "case false:"},
			{Old: "case …:", New: "default:"},
		},
		Catch: []string{"waits-given-up"},
	},
	{
		Name:   "deadlock-stale",
		Breaks: "a deadlock counts when it is seen twice, though its waits were not published again in between",
		Edits:  []Edit{{Old: "case …:", New: "default:"}},
		Catch:  []string{"waits-given-up"},
	},
	{
		Name:   "deadlock-of-processes",
		Breaks: "an owner is taken to hold all that its process holds",
		Edits: []Edit{
			{Old: "…] = append(…],", New: "holds[keys.Owner{}] = append(holds[keys.Owner{}],"},
			{Old: "[…]", New: "[keys.Owner{}]"},
		},
		Catch: []string{"nested"},
	},
	{
		Name:   "deadlock-first-ends",
		Breaks: "the wait that began first ends, instead of the last one",
		Edits:  []Edit{{Old: "> 0", New: "< 0"}},
		Catch:  []string{"deadlocks"},
	},

	// Quorums, and time-outs.
	{
		Name:   "quorum-token-not-raised",
		Breaks: "the token is the highest that a master created, and is not stored on the other masters",
		Edits:  []Edit{{New: "return true, redisexec.Outcome{}"}},
		Catch:  []string{"quorum-clocks"},
	},
	{
		Name:   "quorum-half-is-enough",
		Breaks: "less than half of the masters make a majority",
		Edits:  []Edit{{Old: " + 1"}},
		Catch:  []string{"quorum-calm"},
	},
	{
		Name:   "quorum-undo-dropped",
		Breaks: "an owner without a majority keeps the masters that it got",
		Edits:  []Edit{{New: "clean := true"}},
		Catch:  []string{"quorum-calm"},
	},
	{
		Name:   "quorum-deadline-from-last-vote",
		Breaks: "the lease counts from when the votes were counted, not from when they were requested",
		Edits:  []Edit{{Old: ": …}", New: ": clock.System()}"}},
		Catch:  []string{"quorum-slow-then-silent"},
	},
	{
		Name:   "patience-fixed",
		Breaks: "the wait for each copy of a command is as long as for the first, and a later answer is discarded",
		Edits: []Edit{
			{Old: "min(…", New: "e.Patience)"},
			{Old: "if … ||", New: "if"},
			{Old: "return … //", New: "return patience //"},
		},
	},
	{
		Name:   "silent-lane-reused",
		Breaks: "after a silence the next copy is sent on the silent connection",
		Edits:  []Edit{{Old: "case …:", New: "case true:"}},
	},
}
