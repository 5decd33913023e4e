/* One name on one Redis: a plain lock, with hand-overs within a process.
 *
 * Modelled: one process with two owners, and another owner anywhere else. An owner acquires, renews, re-enters (-DREENTRY),
 * unlocks, and hands over to the other owner of its process. Its commands are executed, sent again, or given up. A copy that
 * was sent again or given up stays in the network for ever: it is executed at any time, any number of times, in any order.
 * So is an undo, which is a release of a retired name.
 * A process is paused whenever it makes no step while the clock does. Any step may come between two others.
 *
 * Left out, and why that is sound:
 *   - The commands of the other owner. It takes the lock whenever it is free on Redis, and releases it at any time. A hold
 *     of this process is never valid for longer than Redis has its name. So two holds are never valid at the same time,
 *     because the other owner is one like these, and Redis has one name.
 *   - Copies of a command whose only copy was answered: TCP delivers it once.
 *   - More identities. A process that has used them up acquires no more, and the rest continues.
 *   - The local queue. Any owner that wants the lock may be the next, so every order is covered.
 *   - The number of copies. Copies differ only in whether the outcome is unknown, so one delayed copy stands for all.
 *   - Waiting and waking, which are in line.pml. Here an owner asks again at any time.
 *
 * gate:
 * gate: -DOWNERS=1 -DREENTRY
 * gate: -DOWNERS=1 -DTOKENS=3
 * hand: -DREENTRY
 * hand: -DLIVES=3
 * hand: -DTTL=4
 * hand: -DTOKENS=4
 * off: NO_RETIRE exclusion: a name is used again although the outcome of a command is unknown
 * off: NO_MARGIN exclusion: the local deadline is as late as the requested lease
 * off: FROM_ANSWER exclusion: the lease is counted from the answer, not from before the request
 * off: NO_DEADLINE exclusion: a hold is valid until Redis answers that it is lost
 * off: END_AFTER_ANSWER exclusion: a hold ends here when its release is answered, not before the release is sent
 * off: REVIVES exclusion: the answer to a renewal makes a lost hold valid again
 * off: SHORTENS exclusion -DREENTRY: a command sets the lease, even if it is shorter
 * off: INCREMENTS stays_free -DREENTRY: commands increment and decrement the hold count, instead of setting it
 * off: NO_LEASE lease_ends: the lock and its lease are set by two commands
 * off: RENEW_CREATES stays_free: a renewal creates a lock that does not exist
 * off: NIL_AT_ANY_TIME unlock_nil: a repeated release that found nothing is a success, even if it began too late
 * off: NO_CLOCK_IN_TOKEN tokens_rise -DTOKENS=6: tokens come from the counter alone, which can be lost
 */
#include "common.pml"

mtype = { idle, offered, asking, held, ending, lost }               /* phases of an owner */
mtype = { none, acquire, renew, reenter, step, release, handoff }   /* commands */
mtype = { silent, yes, no }                                         /* answers */
mtype = { exclusion, known_loss, lease_ends, tokens_rise, unlock_nil, stays_free }

#ifndef OWNERS
#define OWNERS 2
#endif
#ifndef LIVES
#define LIVES 2          /* identities of the process */
#endif
#define SHORT (TTL-1)    /* the TTL of a handle that enters again */
#define nameOf(o) (1 + identity * OWNERS + (o))
#define NAMES (LIVES * OWNERS)
#define ANOTHER (NAMES+1)

/* Redis: the field of the lock, its hold count, and the rest of its lease. */
byte key, levels, left;
bool ghost;              /* it was created by a delayed acquire */
bool fast;               /* the server's clock has been a tick ahead in this lease */

/* A process. */
byte identity;

/* An owner: its hold, and the command of it that is under way. */
mtype phase[OWNERS] = idle, command[OWNERS] = none, answer[OWNERS] = silent;
byte name[OWNERS], level[OWNERS], proof[OWNERS], age[OWNERS], heir[OWNERS];
bool doubt[OWNERS];      /* a copy of the command may still be executed */
bool inTime[OWNERS];     /* its release began before the deadline */
bool found[OWNERS];       /* Redis had it when that was sent, or when it was executed */

/* The network: of each name, the copies that may come late. */
bool lateAcquire[NAMES+1], lateRenew[NAMES+1], lateReenter[NAMES+1], lateStep[NAMES+1], lateRelease[NAMES+1];
byte lateHandoff[NAMES+1];   /* to this name */
bool released[NAMES+2];      /* an Unlock of it has returned nil */

#ifdef TOKENS
byte now, counter, token[OWNERS], last;    /* now: the server's clock, which has gone on at each */
#endif

mtype result = silent;
byte i;

#ifdef NO_DEADLINE
#define valid(o) (phase[o] == held)
#else
#define valid(o) (phase[o] == held && proof[o] > 0)
#endif
#define surely (left - (1 - fast))     /* what the lease has left by any clock */

inline check() {
	for (i : 0 .. OWNERS-1) {
		if
		:: valid(i) ->
			promise(exclusion, key != ANOTHER && !(i == 1 && valid(0)));
			promise(known_loss, key == name[i] && surely >= proof[i])
		:: else
		fi
	}
	promise(lease_ends, key == 0 || left > 0 && left <= TTL);
	promise(stays_free, key == 0 || !released[key] || ghost);
	i = 0; result = silent
}

/* The scripts. */

inline free() { key = 0; levels = 0; left = 0; fast = 0; ghost = 0 }

inline setLease(lease) { left = lease; fast = 0 }

inline lengthen(lease) {
#ifdef SHORTENS
	setLease(lease)
#else
	if
	:: left < lease -> setLease(lease)
	:: else
	fi
#endif
}

inline mint() {
#ifdef TOKENS
	now = (now < TOKENS -> now + 1 : now);
#ifdef NO_CLOCK_IN_TOKEN
	counter = (counter < TOKENS -> counter + 1 : counter)
#else
	counter = (counter + 1 > now -> counter + 1 : now);
	counter = (counter > TOKENS -> TOKENS : counter)
#endif
#else
	skip
#endif
}

/* Executes command c for the field n; t is the heir of a hand-over. */
inline execute(c, n, t) {
	result = no;
	if
	:: c == acquire && key == 0 ->
		key = n; levels = 1; mint(); result = yes;
#ifndef NO_LEASE
		setLease(TTL)
#endif
	:: c == acquire && key == n -> lengthen(TTL); mint(); result = yes
	:: c == renew && key == n -> lengthen(TTL); result = yes
#ifdef RENEW_CREATES
	:: c == renew && key == 0 -> key = n; levels = 1; setLease(TTL); result = yes
#endif
#ifdef INCREMENTS
	:: c == reenter && key == n -> lengthen(SHORT); levels = (levels < 4 -> levels + 1 : 4); result = yes
	:: (c == step || c == release) && key == n ->
		levels--; result = yes;
		if
		:: levels == 0 -> key = 0; left = 0; fast = 0; ghost = 0
		:: else
		fi
#else
	:: c == reenter && key == n -> lengthen(SHORT); levels = 2; result = yes
	:: c == step && key == n -> levels = 1; result = yes
	:: c == release && key == n -> free(); result = yes
#endif
	:: c == handoff && key == n -> key = t; levels = 1; setLease(TTL); mint(); result = yes
	:: c == handoff && key == t -> lengthen(TTL); mint(); result = yes
	:: else
	fi
}

/* The library. */

/* retire: nothing is acquired under the identity of n any more. */
inline retire(n) {
	if
#ifndef NO_RETIRE
	:: identity == (n-1) / OWNERS -> identity++
#endif
	:: else
	fi
}

inline undo(n) { retire(n); lateRelease[n] = 1 }

inline send(o, c) {
	command[o] = c; answer[o] = silent; age[o] = 0; doubt[o] = 0
}

/* The copies of o's command that were not answered stay in the network. */
inline leaveCopy(o) {
	doubt[o] = 1;
	if
	:: command[o] == acquire -> lateAcquire[name[o]] = 1
	:: command[o] == renew   -> lateRenew[name[o]] = 1
	:: command[o] == reenter -> lateReenter[name[o]] = 1
	:: command[o] == step    -> lateStep[name[o]] = 1
	:: command[o] == release -> lateRelease[name[o]] = 1
	:: command[o] == handoff -> lateHandoff[name[o]] = name[heir[o]]
	fi
}

inline settled(o) { command[o] = none; answer[o] = silent; age[o] = 0; doubt[o] = 0 }

#ifdef FROM_ANSWER
#define proven(o, lease) ((lease) - MARGIN)
#else
#define proven(o, lease) ((lease) - MARGIN > age[o] -> (lease) - MARGIN - age[o] : 0)
#endif

inline prove(o, lease) {
	if
	:: proven(o, lease) > proof[o] -> proof[o] = proven(o, lease)
	:: else
	fi
}

/* o is granted the lock, by the answer to a command of s. */
inline receive(h, s) {
	proof[h] = proven(s, TTL); level[h] = 1;
	if
	:: proof[h] == 0 -> printf("owner %d: the grant comes after its lease is over, and is undone\n", h);
		undo(name[h]); name[h] = 0; level[h] = 0; phase[h] = idle
	:: else -> phase[h] = held; printf("owner %d: holds the lock as %d, proven for %d ticks\n", h, name[h], proof[h]);
#ifdef TOKENS
		promise(tokens_rise, now == TOKENS || token[s] > last);
		last = token[s];
#endif
	fi
}

/* The hold is over here: phase p. Its name counts no more. */
inline gone(o, p) { phase[o] = p; proof[o] = 0; level[o] = 0; inTime[o] = 0; found[o] = 0; name[o] = 0 }

inline giveUp(o) {
	leaveCopy(o); retire(name[o]);
	if
	:: command[o] == acquire -> undo(name[o]); settled(o); gone(o, idle)
	:: command[o] == release -> undo(name[o]); settled(o); gone(o, idle)
	:: command[o] == handoff ->
		retire(name[heir[o]]); undo(name[heir[o]]); undo(name[o]);
		gone(heir[o], idle); heir[o] = 0; settled(o); gone(o, idle)
	:: else -> settled(o)
	fi
}

inline lose(o) {
	if
#ifdef REVIVES
	:: command[o] == renew -> undo(name[o]); phase[o] = lost
#else
	:: command[o] == renew -> leaveCopy(o); settled(o); undo(name[o]); gone(o, lost)
#endif
	:: command[o] != none && command[o] != renew -> leaveCopy(o); settled(o); undo(name[o]); gone(o, lost)
	:: else -> undo(name[o]); gone(o, lost)
	fi
}

inline unlocked(o) {
	promise(unlock_nil, found[o]);
	released[name[o]] = 1; printf("owner %d: Unlock returns nil\n", o);
	settled(o); gone(o, idle)
}

/* notOurs: a release or a hand-over finds that Redis does not have the hold. */
inline notOurs(o) {
	retire(name[o]);
	if
#ifdef NIL_AT_ANY_TIME
	:: doubt[o] -> unlocked(o)
#else
	:: doubt[o] && inTime[o] -> unlocked(o)
#endif
	:: else -> printf("owner %d: Unlock returns ErrLost\n", o); settled(o); gone(o, idle)
	fi
}

/* An answer has come to the command of o. */
inline onAnswer(o) {
	if
	:: doubt[o] -> retire(name[o]);
		if
		:: command[o] == handoff -> retire(name[heir[o]])
		:: else
		fi
	:: else
	fi;
	if
	:: command[o] == acquire && answer[o] == yes -> receive(o, o); settled(o)
	:: command[o] == acquire && answer[o] == no ->
		if
		:: doubt[o] -> undo(name[o])
		:: else
		fi;
		settled(o); gone(o, idle)
	:: (command[o] == renew || command[o] == reenter || command[o] == step) && answer[o] == no ->
		printf("owner %d: Redis does not have it: lost\n", o);
		settled(o); lose(o)
	:: command[o] == renew && answer[o] == yes -> phase[o] = held; prove(o, TTL); settled(o)
	:: command[o] == reenter && answer[o] == yes -> prove(o, SHORT); level[o] = 2; settled(o)
	:: command[o] == step && answer[o] == yes -> settled(o)
	:: command[o] == release && answer[o] == yes -> unlocked(o)
	:: command[o] == release && answer[o] == no -> notOurs(o)
	:: command[o] == handoff && answer[o] == yes ->
		receive(heir[o], o); heir[o] = 0; unlocked(o)
	:: command[o] == handoff && answer[o] == no ->
		gone(heir[o], idle); heir[o] = 0; notOurs(o)
	fi
}

#define busyPhase(o) (phase[o] == asking || phase[o] == offered || phase[o] == held || phase[o] == ending)
#define other(o) ((o) == 0 -> 1 : 0)
#define myTurn(o) (OWNERS == 1 || !busyPhase(other(o)))
#define renewing(o) (command[o] == renew)

proctype owner(byte o) {
	do
	/* session.identity, attempt.newName, attempt.ask */
	:: d_step { phase[o] == idle && identity < LIVES && myTurn(o) ->
		name[o] = nameOf(o); phase[o] = asking; released[name[o]] = 0; send(o, acquire);
		printf("owner %d: asks for the lock as %d\n", o, name[o]); check() }
	/* Executor.Run: the command is executed, and answered if that is the copy which is waited for */
	:: d_step { command[o] != none && answer[o] == silent ->
		execute(command[o], name[o], name[heir[o]]); answer[o] = result;
		found[o] = (found[o] || phase[o] == ending && result == yes);
#ifdef TOKENS
		token[o] = counter;
#endif
		printf("Redis: %e for %d: %e\n", command[o], name[o], result); check() }
	:: d_step { command[o] != none && answer[o] != silent ->
		printf("owner %d: receives %e to its %e\n", o, answer[o], command[o]); onAnswer(o); check() }
	/* the answer, or the command, is late: another copy is sent */
	:: d_step { command[o] != none && !doubt[o] ->
		printf("owner %d: sends %e again\n", o, command[o]);
		leaveCopy(o); answer[o] = silent; age[o] = 0;
check() }
	/* no answer comes in time, or the caller's context ends */
	:: d_step { command[o] != none && command[o] != renew ->
		printf("owner %d: gives %e up\n", o, command[o]); giveUp(o); check() }
	:: d_step { command[o] == renew ->
		printf("owner %d: gives renew up\n", o); giveUp(o); check() }
	/* watchdog: hold.renewNow */
	:: d_step { valid(o) && command[o] == none && proof[o] < TTL - MARGIN ->
		send(o, renew); printf("owner %d: renews\n", o); check() }
	/* hold.reenter and hold.step: another level, and back */
#ifdef REENTRY
	:: d_step { valid(o) && command[o] == none && level[o] == 1 -> send(o, reenter);
		printf("owner %d: locks again\n", o); check() }
	:: d_step { valid(o) && command[o] == none && level[o] == 2 -> level[o] = 1; send(o, step);
		printf("owner %d: unlocks one level\n", o); check() }
#endif
	/* hold.unlock: the end is local first; then release, or handOver to the waiter of this process */
	:: d_step { valid(o) && level[o] == 1 && (command[o] == none || renewing(o)) ->
		if
		:: renewing(o) -> leaveCopy(o); settled(o); retire(name[o]); printf("owner %d: gives renew up\n", o)
		:: else
		fi;
#ifndef END_AFTER_ANSWER
		phase[o] = ending;
#else
		inTime[o] = 1; found[o] = 1; send(o, release);
#endif
		printf("owner %d: unlocks\n", o); check() }
	:: d_step { phase[o] == ending && command[o] == none ->
		inTime[o] = (proof[o] > 0); found[o] = (key == name[o]); send(o, release); check() }
	:: d_step { OWNERS == 2 && phase[o] == ending && command[o] == none &&
		phase[other(o)] == idle && identity < LIVES ->
		inTime[o] = (proof[o] > 0); found[o] = (key == name[o]);
		heir[o] = other(o); phase[other(o)] = offered; name[other(o)] = nameOf(other(o)); released[name[other(o)]] = 0;
		send(o, handoff); printf("owner %d: hands over to owner %d as %d\n", o, other(o), name[other(o)]); check() }
	/* watchdog: hold.check */
	:: d_step { phase[o] == held && proof[o] == 0 ->
		printf("owner %d: its lease is over: lost\n", o); lose(o); check() }
	:: d_step { phase[o] == lost && command[o] == none -> gone(o, idle); printf("owner %d: Unlock returns ErrLost\n", o); check() }
	od
}

/* The copies of name n that come late. */
proctype copies(byte n) {
	do
	:: d_step { lateAcquire[n] -> ghost = (ghost || key == 0); execute(acquire, n, 0); printf("Redis: a late acquire for %d: %e\n", n, result); check() }
	:: d_step { lateRenew[n]   -> execute(renew, n, 0);   printf("Redis: a late renew for %d: %e\n", n, result); check() }
	:: d_step { lateReenter[n] -> execute(reenter, n, 0); printf("Redis: a late reenter for %d: %e\n", n, result); check() }
	:: d_step { lateStep[n]    -> execute(step, n, 0);    printf("Redis: a late step for %d: %e\n", n, result); check() }
	:: d_step { lateRelease[n] -> execute(release, n, 0); printf("Redis: a late release or undo of %d: %e\n", n, result); check() }
	:: d_step { lateHandoff[n] != 0 -> execute(handoff, n, lateHandoff[n]);
		printf("Redis: a late handoff from %d to %d: %e\n", n, lateHandoff[n], result); check() }
	od
}

/* The other owner. */
proctype another() {
	do
	:: d_step { key == 0 -> key = ANOTHER; levels = 1; setLease(TTL); mint();
#ifdef TOKENS
		promise(tokens_rise, now == TOKENS || counter > last);
		last = counter;
#endif
		printf("another owner has the lock\n"); check() }
	:: d_step { key == ANOTHER -> free(); printf("another owner releases it\n"); check() }
	od
}

inline tick(d) {
	for (i : 0 .. OWNERS-1) {
		proof[i] = (proof[i] > 0 -> proof[i] - 1 : 0);
		age[i] = (command[i] != none && age[i] < TTL -> age[i] + 1 : age[i])
	}
	if
	:: key != 0 && left <= d -> free(); printf("a tick; the lease runs out on Redis\n")
	:: key != 0 && left > d -> left = left - d; fast = (d == 2 || fast); printf("a tick; the lease has %d left\n", left)
	:: else -> printf("a tick\n")
	fi
}

proctype clock() {
	do
#ifdef TOKENS       /* the first so many tokens count */
	:: d_step { true -> tick(1); check() }
	:: d_step { counter > 0 -> counter = 0; printf("Redis: the counter of the tokens is lost\n") }
#else
	:: d_step { true -> tick(1); check() }
	:: d_step { key != 0 && !fast -> printf("the server's clock is ahead: "); tick(2); check() }
#endif
	od
}

init {
	atomic {
		byte o;
		for (o : 0 .. OWNERS-1) { run owner(o) }
		for (o : 1 .. NAMES) { run copies(o) }
		run another();
		run clock()
	}
}
