package mutant

// All are the mutants.
var All = []Mutant{
	// What Redis is told.
	{
		Name:   "acquire-increments",
		Breaks: "an acquisition adds a level instead of saying that there is one: sent again, it counts twice",
		Edits: []Edit{
			{"internal/protocol/lua/prelude.lua", "redis.call('hset', key, field, '1')", "redis.call('hincrby', key, field, 1)"},
			{"internal/protocol/lua/acquire.lua", "  if ours[i] then\n    lengthen(KEYS[i], lease)", "  if ours[i] then\n    redis.call('hincrby', KEYS[i], field, 1)\n    lengthen(KEYS[i], lease)"},
			{"internal/protocol/lua/line_acquire.lua", "if ours then\n  lengthen(lock, lease)", "if ours then\n  redis.call('hincrby', lock, field, 1)\n  lengthen(lock, lease)"},
		},
		Catch: []string{"counted-twice"},
	},
	{
		Name:   "renew-no-owner",
		Breaks: "a renewal lengthens the lease, whichever owner has the lock",
		Edits: []Edit{
			{"internal/protocol/lua/renew.lua", "if not held(KEYS[i], field) then return 0 end", "if redis.call('exists', KEYS[i]) == 0 then return 0 end"},
			{"internal/protocol/lua/renew_many.lua", "pcall('hexists', KEYS[i], field) == 1", "pcall('exists', KEYS[i]) == 1"},
		},
		Catch: []string{"deleted-while-held"},
	},
	{
		Name:   "renew-recreates",
		Breaks: "a renewal that does not find the lock makes it again",
		Edits: []Edit{
			{"internal/protocol/lua/renew.lua", "if not held(KEYS[i], field) then return 0 end", "if not held(KEYS[i], field) then redis.call('hset', KEYS[i], field, 1) end"},
			{"internal/protocol/lua/renew_many.lua", "or held(KEYS[i], field))", "or held(KEYS[i], field) or call('hset', KEYS[i], field, 1) == 1)"},
		},
		Catch: []string{"deleted-while-held"},
	},
	{
		Name:   "renew-many-deaf",
		Breaks: "a hold that is renewed together with others does not hear that it is lost",
		Edits: []Edit{
			{"internal/protocol/renewals.go", "b.out.Err == nil && !slices.Contains(b.lost, m.position)", "b.out.Err == nil && !slices.Contains(b.lost[:0], m.position)"},
			{"internal/protocol/renewals.go", "duePoints   = 10", "duePoints   = 1"}, // together more often: no flaw
		},
		Catch: []string{"deleted-in-a-batch"},
	},
	{
		Name:   "fence-incr",
		Breaks: "a fencing token is a counter on Redis and nothing else: it starts again when that is lost",
		Edits: []Edit{{"internal/protocol/lua/prelude.lua",
			"local token = now[1] * 1000000 + now[2]",
			"local token = 1"}},
		Catch: []string{"data-deleted", "deleted-while-held"},
	},
	{
		Name:   "release-no-owner",
		Breaks: "a release deletes the lock, whichever owner has it",
		Edits: []Edit{
			{"internal/protocol/lua/release.lua", "if not held(KEYS[i], field) then", "if redis.call('exists', KEYS[i]) == 0 then"},
			{"internal/protocol/lua/release.lua", "redis.call('hdel', KEYS[i], field)", "redis.call('del', KEYS[i])"},
			{"internal/protocol/lua/line_release.lua", "redis.pcall('hdel', KEYS[1], ARGV[1]) == 1", "redis.pcall('del', KEYS[1]) == 1"},
			{"internal/protocol/lua/line_release.lua", "local ours = held(lock, field)", "local ours = redis.call('exists', lock) == 1"},
			{"internal/protocol/lua/line_release.lua", "redis.call('hdel', lock, field)", "redis.call('del', lock)"},
		},
		Catch: []string{"acquire-reply-lost", "release-reply-lost", "late-release"},
	},
	{
		Name:   "handoff-no-token",
		Breaks: "a hand-over mints no token of its own: the next holder gets that of the one before",
		Edits: []Edit{{"internal/protocol/lua/handoff.lua",
			"local token, bad = next_token(n)\n",
			"local token, bad = 0\nfor i = n + 1, #KEYS do token = math.max(token, tonumber(redis.call('get', KEYS[i])) or 0) end\n"}},
		Catch: []string{"calm"},
	},
	{
		Name:   "poll-mints-again",
		Breaks: "a poll that finds the lock granted mints a token of its own: the message of the grant has another one",
		Edits: []Edit{{"internal/protocol/lua/line_poll.lua",
			"if field == served then\n      token = minted\n    elseif seen == '' or token <= tonumber(seen) then",
			"if true then"}},
		Catch: []string{"calm"},
	},
	{
		Name:   "rename-recreates",
		Breaks: "a rename that does not find the lock makes it again",
		Edits: []Edit{{"internal/protocol/lua/rename.lua",
			"if not held(KEYS[1], to) then return {0, 0} end",
			"if not held(KEYS[1], to) then redis.call('hset', KEYS[1], to, '1') end"}},
		Catch: []string{"batches-deleted"},
	},
	{
		Name:   "batch-own-lease",
		Breaks: "a hold that follows another begins with a lease of its own, which no answer has proven",
		Edits: []Edit{
			{"batch.go", "h.lease.Follow(l)", "h.lease.Grant(h.session.Now(), max(h.settings.TTL, l.Left(h.session.Now())))"},
		},
		Catch: []string{"batches-slow-then-silent"},
	},
	{
		Name:   "batch-doubt-kept",
		Breaks: "the names of a rename in doubt are used again",
		Edits: []Edit{
			{"internal/batch/batch.go", "			b.env.Retire(from.Identity)\n			b.env.Retire(to.Identity)\n", ""},
		},
		Catch: []string{"batches-late"},
	},

	// What is known about commands that were not answered.
	{
		Name:   "uuid-never-retired",
		Breaks: "a name is used again though a command of it may still be on its way",
		Edits: []Edit{{"internal/identity/identity.go",
			"if s.current.Load() == id {",
			"if s.current.Load() == nil {"}},
		Catch: []string{"late-release"},
	},
	{
		Name:   "go-redis-resends",
		Breaks: "go-redis sends commands again by itself, and the library does not know of it",
		Edits: []Edit{{"internal/redisexec/call.go",
			"func (*call) NoRetry() bool { return true }",
			"func (*call) NoRetry() bool { return false }"}},
		Catch: []string{"release-lost", "late-release"},
	},
	{
		Name:   "undo-dropped",
		Breaks: "what an acquisition that was given up has left on Redis is not undone",
		Edits: []Edit{{"internal/undo/undo.go",
			"	q.pending[next.id()] = &next\n",
			""}},
		Catch: []string{"slow-orphans"},
	},

	// What the holder believes.
	{
		Name:   "deadline-from-reply",
		Breaks: "the lease counts from when the reply came, not from when the request was sent",
		Edits: []Edit{{"internal/redisexec/exec.go",
			"		if v.answered {\n",
			"		if v.answered {\n			out.Sent = x.Now()\n"}},
		Catch: []string{"slow-then-silent"},
	},
	{
		Name:   "clock-not-asked",
		Breaks: "a hold whose lease has run out is valid until its watchdog has run",
		Edits: []Edit{{"hold.go",
			"func (h *hold) count(t *keys.Set) int {\n	h.Check()\n",
			"func (h *hold) count(t *keys.Set) int {\n"}},
		Catch: []string{"client-paused"},
	},
	{
		Name:   "context-ends-late",
		Breaks: "the context of a hold ends when its release was answered",
		Edits: []Edit{{"hold.go",
			"	for _, x := range h.contexts.TakeAll() {\n		x.End(lockerr.Wrap(\"hold\", h.target.Name, cause))\n	}\n",
			"	contexts := h.contexts.TakeAll()\n	cause = lockerr.Wrap(\"hold\", h.target.Name, cause)\n	released := h.changes()\n	cancel := func() {\n		if p == ending {\n			<-released\n		}\n" +
				"		for _, x := range contexts {\n			x.End(cause)\n		}\n	}\n" +
				"	if p == ending {\n		go cancel()\n	} else {\n		cancel()\n	}\n"}},
		Catch: []string{"slow-holder"},
	},
	{
		Name:   "reentry-not-counted",
		Breaks: "a re-entry does not tell Redis that there is one more level",
		Edits:  []Edit{{"reenter.go", "counts[i]++", "counts[i] += 0"}},
		Catch:  []string{"calm"},
	},
	{
		Name:   "loss-forgotten",
		Breaks: "Lock inside a lost hold acquires the lock again, and the levels outside believe that they have it",
		Edits: []Edit{{"reenter.go",
			"	case lost:\n		return h.cause\n	default:\n		return errAgain\n",
			"	case lost:\n		h.unregister()\n		return errAgain\n	default:\n		return errAgain\n"}},
		Catch: []string{"misuse"},
	},
	{
		Name:   "unlock-hides-loss",
		Breaks: "Unlock of a lost hold reports success",
		Edits: []Edit{{"release.go",
			"		cause, over := h.cause, last && h.phase == lost\n",
			"		var cause error\n		over := last && h.phase == lost\n"}},
		Catch: []string{"client-paused", "misuse"},
	},

	// Who waits.
	{
		Name:   "no-poll",
		Breaks: "a waiter sleeps until a message comes, and messages get lost",
		Edits: []Edit{
			{"internal/acquire/acquire.go", "	return min(d, a.longestSleep)\n", "	return time.Hour\n"},
			{"internal/line/line.go", "d = min(d, e.Terms.EntryPoll())", "d = max(d, time.Hour, e.Terms.EntryPoll())"},
		},
		Catch: []string{"client-killed", "subscribers-deaf"},
	},
	{
		Name:   "handoff-to-nobody",
		Breaks: "the lock is handed over to a waiter that has gone",
		Edits: []Edit{{"internal/queue/queue.go",
			"	if to.state != Reserved {\n		return false\n	}\n	q.line.Remove(to.place)\n	t.state = Gone\n",
			"	q.line.Remove(to.place)\n	t.state = Gone\n"}},
		Catch: []string{"slow-cancels"},
	},
	{
		Name:   "wakeup-consumed",
		Breaks: "a head of the queue that leaves takes the wake-up with it",
		Edits: []Edit{
			{"internal/queue/queue.go", "	q.give(next)\n	pass(q, next)\n", "	q.give(next)\n	next.fresh = false\n	pass(q, next)\n"},
			{"internal/acquire/plain.go", "a.sleepFor(clock.Jitter(2 * pubsubDelay))", "a.sleepFor(a.longestSleep)"},
		},
		Catch: []string{"quorum-slow-wakeups"},
	},

	// Who waits in order.
	{
		Name:   "fair-last-first",
		Breaks: "a fair lock goes to the waiter that came last",
		Edits: []Edit{
			{"internal/protocol/lua/line_release.lua", "redis.pcall('zrange', KEYS[3], '0', '0')[1]", "redis.pcall('zrevrange', KEYS[3], 0, 0)[1]"},
			{"internal/protocol/lua/line_prelude.lua", "local field = redis.call('zrange', queue, '0', '0')[1]", "local field = redis.call('zrevrange', queue, '0', '0')[1]"},
		},
		Catch: []string{"fair-calm"},
	},
	{
		Name:   "fair-overtaken",
		Breaks: "an owner that finds a fair lock free takes it, although others wait",
		Edits: []Edit{{"internal/protocol/lua/line_acquire.lua",
			"if queue and not ours and not busy then",
			"if queue and not ours and not busy and redis.call('exists', lock) == 1 then"}},
		Catch: []string{"fair-and-plain"},
	},
	{
		Name:   "fair-dead-served",
		Breaks: "a place in the queue never expires: a fair lock goes to the dead",
		Edits: []Edit{
			{"internal/protocol/lua/line_release.lua", "if till and tonumber(till) > now and strangers", "if till and strangers"},
			{"internal/protocol/lua/line_prelude.lua", "    if not till or tonumber(till) <= now then\n", "    if not till then\n"},
		},
		Catch: []string{"fair-waiters-stop"},
	},
	{
		Name:   "fair-place-kept",
		Breaks: "a waiter that gives up leaves its place in the queue behind",
		Edits: []Edit{{"internal/acquire/spot.go",
			"	s.undo(s.name, 2*a.terms.EntryLease(), false)\n",
			""}},
		Catch: []string{"fair-calm"},
	},

	// The line of processes.
	{
		Name:   "line-newcomers-pass",
		Breaks: "an owner that finds the lock free takes it without a look at the line",
		Edits: []Edit{{"internal/protocol/lua/line_acquire.lua",
			"redis.pcall('exists', KEYS[1], KEYS[3] or KEYS[1]) == 0",
			"redis.pcall('exists', KEYS[1]) == 0"}},
		Catch: []string{"line-calm"},
	},
	{
		Name:   "line-grant-without-owner",
		Breaks: "a release by one that does not hold the lock gives it to the first in line",
		Edits: []Edit{{"internal/protocol/lua/line_release.lua",
			"elseif not ours and redis.call('exists', lock) == 0 and reserved(false) == 0 then",
			"elseif not ours then"}},
		Catch: []string{"calm"},
	},
	{
		Name:   "line-spot-kept",
		Breaks: "a waiter that gives up leaves the place of its process behind, and no other one waits on by it",
		Edits: []Edit{{"internal/acquire/mutex.go",
			"			t.bequeath()\n",
			"			t.line.spot.drop()\n"}},
		Catch: []string{"calm"},
	},
	{
		Name:   "line-strangers-stay",
		Breaks: "the turn of strangers never ends",
		Edits: []Edit{
			{"internal/protocol/lua/line_prelude.lua", "  if now >= till or till > now + ahead then\n", "  if till == 0 then\n"},
			{"internal/protocol/lua/line_prelude.lua", "  return till - now\n", "  return 60000\n"},
		},
		Catch: []string{"calm"},
	},
	{
		Name:   "line-poll-renews-nothing",
		Breaks: "a poll does not lengthen the life of a place",
		Edits: []Edit{{"internal/protocol/lua/line_poll.lua",
			"write(field, now + lease, entry_lease,",
			"write(field, till, entry_lease,"}},
		Catch: []string{"line-long-holds"},
	},
	{
		Name:   "line-poll-listens",
		Breaks: "a poll says that its process listens, though it does not: it is passed over again and again",
		Edits: []Edit{{"internal/protocol/lua/line_poll.lua",
			"deaf(count, channel) and '2' or '0', channel)",
			"'0', channel)"}},
		Catch: []string{"line-unheard"},
	},
	{
		Name:   "multi-keeps-forever",
		Breaks: "a MultiMutex keeps what it has been given until it gets the rest",
		Edits: []Edit{{"internal/acquire/multi.go",
			"	return t.keeps() && t.a.env.Now().Until(t.until) <= 0\n",
			"	return false\n"}},
		Catch: []string{"line-of-several"},
	},

	// Who reads.
	{
		Name:   "min-hold-not-kept",
		Breaks: "an early Unlock gives the lock back, though it is to be kept for its min hold",
		Edits: []Edit{{"internal/protocol/keep.go",
			"if rest <= 0 || freed == nil {",
			"if rest < time.Hour || freed == nil {"}},
		Catch: []string{"min-holds"},
	},
	{
		Name:   "min-hold-expiry-first",
		Breaks: "what is kept gets its expiry before its field: if hardly anything is left, it is made anew, for ever",
		Edits: []Edit{{"internal/protocol/lua/keep.lua",
			"    redis.call('hdel', KEYS[i], '') -- needs no memory, and so opens the way for HSET\n    local refused = take(KEYS[i], to, rest)\n    if refused then return refused end\n",
			"    redis.call('pexpire', KEYS[i], rest)\n    redis.call('hset', KEYS[i], to, '1')\n"}},
		Catch: []string{"min-holds-of-a-moment"},
	},
	{
		Name:   "reader-joins-writer",
		Breaks: "a reader does not mind that another owner writes",
		Edits: []Edit{{"internal/protocol/lua/rw_read.lua",
			"if redis.call('hexists', lock, ARGV[4]) == 0 then return busy() end",
			""}},
		Catch: []string{"sides-calm"},
	},
	{
		Name:   "writer-ends-readers",
		Breaks: "the release of a writer takes the lock from those that read on",
		Edits: []Edit{{"internal/protocol/lua/rw_write_release.lua",
			"settle(gone, other, longest)\n",
			"redis.call('del', lock)\n"}},
		Catch: []string{"sides-calm"},
	},
	{
		Name:   "reader-never-dies",
		Breaks: "the lease of a reader has no end: it is never dropped when it is dead",
		Edits: []Edit{{"internal/protocol/lua/rw_read.lua",
			"redis.call('set', timeout(field, 1), '1', 'px', lease)",
			"redis.call('set', timeout(field, 1), '1')"},
			{"internal/protocol/lua/rw_read.lua",
				":rwlock_timeout:1', '1', 'px', ARGV[3])",
				":rwlock_timeout:1', '1')"}},
		Catch: []string{"sides-harmed"},
	},
	{
		Name:   "writer-starves",
		Breaks: "new readers do not mind that a writer waits",
		Edits: []Edit{{"internal/protocol/lua/rw_read.lua",
			"if from and clock() >= from then",
			"if from and clock() < 0 then"}},
		Catch: []string{"readers-stream"},
	},
	{
		Name:   "writer-kept-waiting",
		Breaks: "a writer may not read if its client has got a new identity since",
		Edits: []Edit{{"internal/acquire/rw.go",
			"	writes := t.writer.Field()\n",
			"	writes := t.writer.Field()\n	if writes != \"\" {\n		writes = n.Field + keys.WriteSuffix\n	}\n"}},
		Catch: []string{"sides-harmed"},
	},

	// What a quorum agrees on.
	{
		Name:   "quorum-token-not-raised",
		Breaks: "a token is the highest that was minted, and other masters never hear of it",
		Edits: []Edit{{"internal/quorum/elect.go",
			"return n.plain.Raise(q.env.Background, e, t, field, s, g.Token)",
			"return true, redisexec.Outcome{}"}},
		Catch: []string{"quorum-clocks"},
	},
	{
		Name:   "quorum-half-is-enough",
		Breaks: "less than half of the masters make a majority",
		Edits: []Edit{{"internal/quorum/quorum.go",
			"return len(q.nodes)/2 + 1 }",
			"return len(q.nodes) / 2 }"}},
		Catch: []string{"quorum-calm"},
	},
	{
		Name:   "quorum-undo-dropped",
		Breaks: "an owner that gets no majority keeps the masters that it got",
		Edits: []Edit{{"internal/quorum/elect.go",
			"clean := q.takeBack(ctx, b, e, t, field)",
			"clean := true"}},
		Catch: []string{"quorum-calm"},
	},
	{
		Name:   "quorum-deadline-from-last-vote",
		Breaks: "the lease counts from when the votes were counted, not from when they were asked for",
		Edits: []Edit{
			{"internal/quorum/ballot.go", "	unsent   error ", "	now      clock.Clock\n	unsent   error "},
			{"internal/quorum/ballot.go", "		report:   q.env.Failure,\n", "		report:   q.env.Failure,\n		now:      q.env.Now,\n"},
			{"internal/quorum/ballot.go", "out := redisexec.Outcome{Sent: b.sent}", "out := redisexec.Outcome{Sent: b.now()}"},
		},
		Catch: []string{"quorum-slow-then-silent"},
	},
}
