/* Permits: a semaphore, and the line of its waiters.
 *
 * Modelled: three clients, which want permits of the weights 1, 1 and 2, and the limit 2. The first client asks for a permit
 * or an entry, keeps the entry alive by polls, renews the permit, and releases it. The line is served in order, by each
 * script that finds room. A grant is sent in a message, which is lost, late or repeated. The commands of the first client are
 * executed, sent again, or given up. A copy that was sent again or given up stays in the network for ever: it is executed at
 * any time, any number of times, in any order. So is an undo, which is a release. A client crashes whenever it makes no
 * further step. The other two clients send each command at any time, so delayed copies of theirs are covered.
 * With -DLIVE all three acquire and release for ever, and the last one may die at any time. Then each of the
 * others is served.
 *
 * Left out, and why that is sound:
 *   - The lives of the other clients. See name.pml: a permit of the first client is never valid for longer than Redis has it,
 *     and Redis never has more than the limit. Other clients are like this one.
 *   - Leases of full length. Each ends a tick sooner, as by a clock that is ahead.
 *   - Skipped entries: turns.pml. Here the entry of a dead client lasts for its lease.
 *   - The ticket of an entry: a name is used for one request, and has one ticket. See line.pml for the proof of a grant.
 *   - Different limits: a request is compared with its own limit only. Min holds: a placeholder is a permit that lasts longer.
 *   - Requests that do not wait: a request that gives up its entry at once.
 *
 * gate:
 * gate: -DW=2
 * gate: -DLIVE
 * gate: -DLIVE -DW=2
 * hand: -DLIVES=2
 * hand: -DLIVES=2 -DW=2
 * hand: -DTTL=4
 * off: EXPIRED_COUNTS served -DLIVE -DW=2: a permit whose lease is over still counts
 * off: RENEW_CREATES within_limit: a renewal adds a permit that is not there
 * off: RELEASES_ANY known_loss: a release removes the permit that ends first, whoever has it
 * off: NAME_AGAIN exclusion: the next permit of a client has the name of the one before
 * off: SMALL_PASS in_order: a request that fits is served before a larger one that waits
 * off: SMALL_PASS served -DLIVE -DW=2: a request that fits is served before a larger one that waits
 * off: NEWCOMERS_PASS in_order: a newcomer gets a permit if it fits, although others wait
 * off: ONE_HEAD all_that_fit: a release serves only the first in line
 * off: WEIGHT_FORGOTTEN exclusion: each permit counts as one, whatever its weight is
 * off: NO_MARGIN exclusion: the local deadline is as late as the requested lease
 */
#include "common.pml"

mtype = { idle, asking, waiting, held, ending, dead }        /* phases of a client */
mtype = { none, acquire, poll, renew, release }              /* commands */
mtype = { silent, yes, waits, no }                           /* answers */
mtype = { exclusion, known_loss, within_limit, stays_free, in_order, all_that_fit }

#define LIMIT 2
#ifndef LIVES
#define LIVES 1                          /* requests of the first client, each with a name of its own */
#endif
#ifndef W
#define W 1                              /* the weight of the first client's permits */
#endif
#define N (LIVES + 2)                    /* names: 1 to LIVES, then one for each other client; 0: none */
#define weight(n) ((n) <= LIVES -> W : ((n) == N -> 1 : 3 - W))
#ifdef WEIGHT_FORGOTTEN
#define counted(n) 1
#else
#define counted(n) weight(n)
#endif
#define LEASE (TTL - 1)                  /* as Redis' clock has it */

/* Redis: the set of permits, and the line. */
byte left[N+1];                          /* of a permit: 0: there is none; 1: its lease is over; else the rest of the lease, and 1 */
byte line[N+1];                          /* the names that wait, in order; then 0 */
byte entry[N+1];                         /* what the lease of an entry has left; 0: there is none */

#ifdef LIVE
mtype phase[N+1] = idle;
byte due[N+1];                           /* a poll is due in so many ticks */
bool beat;                               /* another one for each tick */
#else
/* The first client: its request or permit, and the command of it that is under way. */
mtype phase = idle, command = none, answer = silent;
byte life = 1, name, proof, age, sent;   /* age: of the last answer "it waits"; sent: of the command; each since it was sent */
bool doubt;                              /* a copy of the command may still be executed */
bool unsure;                             /* a copy of the request for the entry may still be executed */
bool notified;                           /* the message of the grant came before the answer */

/* The network: of each name, what may come late. */
bool lateAcquire[LIVES+1], latePoll[LIVES+1], lateRenew[LIVES+1], lateRelease[LIVES+1], message[LIVES+1];
bool released[LIVES+1];                  /* a Release of it has returned nil */
#endif

mtype result = silent;
byte i, j, k, m, next, used;

#define live(n) (left[n] > 1)
#define fits(n) (used + weight(n) <= LIMIT)

inline check() {
	used = 0;
	for (i : 1 .. N) { used = used + (live(i) -> weight(i) : 0) };
	promise(within_limit, used <= LIMIT);
#ifndef LIVE
	if
	:: phase == held && proof > 0 ->
		promise(exclusion, used - (live(name) -> W : 0) + W <= LIMIT);
		promise(known_loss, live(name) && left[name] - 1 >= proof)
	:: else
	fi;
	for (i : 1 .. LIVES) { promise(stays_free, !released[i] || left[i] == 0 || lateAcquire[i]) };
#endif
	i = 0; j = 0; k = 0; m = 0; next = 0; used = 0; result = silent
}

/* The scripts. */

inline give(n) { left[n] = LEASE + 1 }

/* in_use: drops the permits whose lease is over, and counts the weight of the rest. */
inline inUse() {
	used = 0;
	for (i : 1 .. N) {
#ifndef EXPIRED_COUNTS
		left[i] = (left[i] == 1 -> 0 : left[i]);
#endif
		used = used + (left[i] > 0 -> counted(i) : 0)
	}
}

inline leave(n) {
	entry[n] = 0; j = 0;
	for (i : 0 .. N-1) {
		if
		:: line[i] != n && line[i] != 0 -> line[j] = line[i]; j++
		:: else
		fi
	};
	for (i : j .. N-1) { line[i] = 0 }
}

/* Adds n behind all others. If it waits already, it keeps its place. */
inline enqueue(n) {
	k = 0;
	do
	:: line[k] != 0 && line[k] != n -> k++
	:: else -> break
	od;
	line[k] = n; entry[n] = LEASE
}

inline notify(n) {
#ifndef LIVE
	if
	:: n <= LIVES -> message[n] = 1
	:: else
	fi
#else
	skip
#endif
}

/* serve_all: grants permits to the first in line, as many as fit. */
inline serve() {
	k = 0;
	do
	:: line[k] == 0 -> break
	:: line[k] != 0 && fits(line[k]) ->
#ifndef LIVE
		promise(in_order, k == 0);
#endif
		next = line[k]; leave(next); give(next); used = used + counted(next); notify(next);
		printf("Redis: a permit is granted to %d\n", next);
#ifdef ONE_HEAD
		break
#endif
	:: else ->
#ifdef SMALL_PASS
		k++
#else
		break
#endif
	od;
	promise(all_that_fit, line[0] == 0 || !fits(line[0]))
}

#ifdef NEWCOMERS_PASS
#define mayTake(n) fits(n)
#else
#define mayTake(n) (fits(n) && line[0] == 0)
#endif

/* permit_acquire.lua */
inline permitAcquire(n) {
	inUse();
	if
	:: left[n] == 0 -> serve()
	:: else
	fi;
	if
	:: left[n] > 0 -> give(n); result = yes
	:: left[n] == 0 && mayTake(n) ->
		promise(in_order, line[0] == 0 || line[0] == n);
		leave(n); give(n); result = yes
	:: else -> enqueue(n); result = waits
	fi
}

/* permit_poll.lua */
inline permitPoll(n) {
	inUse();
	entry[n] = (entry[n] > 0 -> LEASE : 0);
	serve();
	if
	:: live(n) -> give(n); result = yes
	:: !live(n) && entry[n] > 0 -> result = waits
	:: else -> result = no
	fi
}

/* permit_renew.lua: a permit whose lease is over is removed. */
inline permitRenew(n) {
#ifdef RENEW_CREATES
	give(n); result = yes
#else
	if
	:: live(n) -> give(n); result = yes
	:: else -> left[n] = 0; result = no
	fi
#endif
}

/* permit_release.lua */
inline permitRelease(n) {
	result = (live(n) -> yes : no);
#ifdef RELEASES_ANY
	next = n;
	for (i : 1 .. N) { next = (left[i] > 0 && (left[next] == 0 || left[i] < left[next]) -> i : next) };
	left[next] = 0;
#else
	left[n] = 0;
#endif
	leave(n); inUse(); serve()
}

inline tick() {
	printf("a tick\n");
	for (m : 1 .. N) {
		left[m] = (left[m] > 1 -> left[m] - 1 : left[m]);
		entry[m] = (entry[m] > 0 -> entry[m] - 1 : 0);
		if
		:: entry[m] == 0 -> next = m; leave(next)
		:: else
		fi
	}
}

#ifndef LIVE

inline execute(c, n) {
	if
	:: c == acquire -> permitAcquire(n)
	:: c == poll -> permitPoll(n)
	:: c == renew -> permitRenew(n)
	:: c == release -> permitRelease(n)
	fi
}

/* The library. */

inline send(c) { command = c; answer = silent; sent = 0; doubt = 0 }
inline settled() { command = none; answer = silent; sent = 0; doubt = 0 }
inline over() { phase = idle; name = 0; proof = 0; age = 0; unsure = 0; notified = 0; settled() }

inline leaveCopy() {
	if
	:: command == acquire -> lateAcquire[name] = 1
	:: command == poll -> latePoll[name] = 1
	:: command == renew -> lateRenew[name] = 1
	:: command == release -> lateRelease[name] = 1
	:: else
	fi
}

/* The name is not used any more. What it has is released, at any time. */
inline undo() { leaveCopy(); lateRelease[name] = 1; over() }

#define proven(a) (TTL - MARGIN > (a) -> TTL - MARGIN - (a) : 0)

/* The permit is granted, by an answer or a message; a: the age of its proof. */
inline holds(a) {
	proof = proven(a); settled(); age = 0; unsure = 0; notified = 0;
	if
	:: proof == 0 -> printf("the grant comes after its lease is over, and is undone\n"); undo()
	:: else -> phase = held; printf("the client has the permit %d, proven for %d ticks\n", name, proof)
	fi
}

/* Line.believe */
inline believe() {
	if
	:: !unsure && age < TTL - MARGIN -> leaveCopy(); holds(age)
	:: else -> printf("the message proves nothing\n"); notified = 0
	fi
}

inline onAnswer() {
	if
	:: answer == yes && (command == acquire || command == poll) -> holds(sent)
	:: answer == waits && command == acquire ->
		unsure = doubt; age = sent; phase = waiting; settled();
		if
		:: notified -> believe()
		:: else
		fi
	:: answer == waits && command == poll -> age = sent; settled()
	:: answer == no && command == poll -> printf("the entry is gone\n"); over()
	:: answer == yes && command == renew -> proof = (proven(sent) > proof -> proven(sent) : proof); settled()
	:: answer == no && command == renew -> printf("Redis does not have the permit: lost\n"); undo()
	:: answer == yes && command == release -> printf("Release returns nil\n"); released[name] = 1; over()
	:: answer == no && command == release -> over()
	fi
}

#ifdef NAME_AGAIN
#define takeName() name = 1
#else
#define takeName() name = life; life++
#endif

proctype client() {
	do
	/* Semaphore.acquire, lineWaiter.enqueue: each request has a new name */
	:: d_step { phase == idle && life <= LIVES -> takeName(); phase = asking; released[name] = 0; send(acquire);
		printf("the client asks for a permit as %d\n", name) }
	/* Executor.Run */
	:: d_step { command != none && answer == silent -> execute(command, name); answer = result;
		printf("Redis: %e for %d: %e\n", command, name, result); check() }
	:: d_step { command != none && answer != silent ->
		printf("the client receives %e to its %e\n", answer, command); onAnswer(); check() }
	:: d_step { command != none && !doubt -> printf("the client sends %e again\n", command);
		leaveCopy(); doubt = 1; answer = silent; sent = 0 }
	/* no answer comes in time */
	:: d_step { command == poll || command == renew -> printf("%e is not answered\n", command); leaveCopy(); settled() }
	:: d_step { command == release -> printf("the client gives its release up\n"); undo() }
	/* lineWaiter.poll; hold.renewNow */
	:: d_step { phase == waiting && command == none -> send(poll) }
	:: d_step { phase == held && proof > 0 && proof < TTL - MARGIN && command == none -> send(renew); printf("the client renews\n") }
	/* lineWaiter.giveUp: the caller's context ends */
	:: d_step { phase == asking || phase == waiting -> printf("the client gives up\n"); undo() }
	/* Permit.Release: the permit ends here first */
	:: d_step { phase == held && proof > 0 -> printf("the client releases %d\n", name);
		leaveCopy(); phase = ending; proof = 0; send(release) }
	/* hold.check */
	:: d_step { phase == held && proof == 0 -> printf("the lease is over: lost\n"); undo() }
	od
}

/* Line.message, and the copies of name n that come late. */
proctype network(byte n) {
	do
	:: d_step { message[n] && name == n && (phase == waiting || phase == asking && !notified) -> printf("a message: %d is granted\n", n);
		if
		:: phase == waiting -> believe()
		:: else -> notified = 1
		fi;
		check() }
	:: d_step { lateAcquire[n] -> permitAcquire(n); printf("Redis: a late acquire of %d: %e\n", n, result); check() }
	:: d_step { latePoll[n] -> permitPoll(n); printf("Redis: a late poll of %d: %e\n", n, result); check() }
	:: d_step { lateRenew[n] -> permitRenew(n); printf("Redis: a late renewal of %d: %e\n", n, result); check() }
	:: d_step { lateRelease[n] -> permitRelease(n); printf("Redis: a late release or undo of %d: %e\n", n, result); check() }
	od
}

/* Another client, and the copies of its commands. */
proctype other(byte n) {
	do
	:: d_step { true -> permitAcquire(n); printf("Redis: acquire of %d: %e\n", n, result); check() }
	:: d_step { true -> permitRenew(n); printf("Redis: renew of %d: %e\n", n, result); check() }
	:: d_step { true -> permitRelease(n); printf("Redis: release of %d: %e\n", n, result); check() }
	od
}

proctype clock() {
	do
	:: d_step { true -> tick();
		proof = (proof > 0 -> proof - 1 : 0);
		age = (phase == waiting && age < TTL -> age + 1 : age);
		sent = (command != none && sent < TTL -> sent + 1 : sent);
		check() }
	od
}

init {
	atomic {
		byte n;
		run client();
		for (n : 1 .. LIVES) { run network(n) }
		for (n : LIVES + 1 .. N) { run other(n) }
		run clock()
	}
}

#else

proctype process(byte n) {
	do
	:: d_step { phase[n] == idle -> permitAcquire(n); due[n] = 1; phase[n] = (result == yes -> held : waiting);
		printf("process %d acquires: %e\n", n, result); check() }
	:: d_step { phase[n] == held -> phase[n] = idle; permitRelease(n); printf("process %d releases\n", n); check() }
	/* the message is not lost */
	:: d_step { phase[n] == waiting && live(n) -> phase[n] = held; printf("process %d receives the message of its grant\n", n) }
	:: d_step { phase[n] == waiting && due[n] == 0 -> permitPoll(n); due[n] = 1;
		phase[n] = (result == yes -> held : (result == waits -> waiting : idle));
		printf("process %d polls: %e\n", n, result); check() }
	od
}

proctype death() {
	if
	:: d_step { true -> phase[N] = dead; printf("process %d dies\n", N) }
	:: true
	fi
}

/* Before the next tick, a waiter polls, unless its message arrives, and a holder releases. */
#define inTime(n) (phase[n] != held && (phase[n] != waiting || due[n] > 0))

proctype clock() {
	do
	:: d_step { inTime(1) && inTime(2) && inTime(3) -> tick(); beat = !beat;
		for (i : 1 .. N) { due[i] = (due[i] > 0 -> due[i] - 1 : 0) };
		check() }
	od
}

init {
	atomic {
		byte n;
		for (n : 1 .. N) { run process(n) }
		run death();
		run clock()
	}
}

/* If time goes on. */
ltl served { ([]<> beat && []<> !beat) -> [] (phase[1] == waiting -> <> (phase[1] == held)) }
#endif
