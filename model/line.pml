/* An entry in the line, and its grant in a message.
 *
 * Modelled: one process with a waiter, and others anywhere else. The waiter asks for the lock or an entry, and keeps the
 * entry alive by polls. The release of another owner may grant it the lock, and sends a message with its ticket. Messages
 * are lost, late and repeated. The request for the entry may be sent again or given up; then a copy is executed at any time,
 * any number of times. So is an undo. The waiter may give up, be paused, or die.
 *
 * Left out, and why that is sound:
 *   - The order of the line, and skipped entries: a release may grant the lock to this entry or not. The order is in
 *     turns.pml, and does not affect the validity of a hold.
 *   - Renewals, re-entry, and releases with an unknown outcome: a granted lock is like any other (name.pml).
 *   - The other owners' commands: see name.pml.
 *   - More tickets and identities: a process that has used them up asks no more.
 *
 * gate:
 * hand: -DTICKETS=4 -DLIVES=3
 * hand: -DTTL=4
 * off: NO_PROOF exclusion: the lease is counted from the message, however late that comes, not from the last answer
 * off: NO_TICKET exclusion: a message names the waiter, not its ticket
 * off: BELIEVES_UNSURE exclusion: a message is a proof although the request for the entry was sent twice
 * off: NO_RETIRE exclusion: the name of an entry that was given up is used again
 * off: NO_MARGIN exclusion: the local deadline is as late as the requested lease
 * off: ENTRY_FOR_EVER entry_ends: an entry has no lease
 */
#include "common.pml"

mtype = { idle, asking, waiting, held, dead }
mtype = { silent, granted, waits, none }               /* answers */
mtype = { exclusion, known_loss, entry_ends }

#ifndef LIVES
#define LIVES 2
#endif
#ifndef TICKETS
#define TICKETS 3
#endif
#define ANOTHER (LIVES+1)

/* Redis: the lock; the entries of the names, the ticket of each and the rest of its lease. */
byte key, left, entry[LIVES+1], entryLeft[LIVES+1];
bool fast;

/* The process. */
mtype phase = idle, answer = silent;
byte life = 1, name, ticket, tickets, proof, age, polled;    /* age: of the last answer "you wait", or of what is asked */
bool doubt, unsure, notified, polling;

/* The network. */
byte late[LIVES+1];                                  /* the ticket of a delayed request for an entry */
bool undo[LIVES+1], message[TICKETS+1];

byte i;

#define valid (phase == held && proof > 0)
#define surely (left - (1 - fast))

inline check() {
	promise(exclusion, !valid || key != ANOTHER);
	promise(known_loss, !valid || key == name && surely >= proof);
	for (i : 1 .. LIVES) { promise(entry_ends, entry[i] == 0 || entryLeft[i] > 0) }
	i = 0
}

inline setLease() { left = TTL; fast = 0 }
inline free() { key = 0; left = 0; fast = 0 }
inline setEntry(n) {
#ifndef ENTRY_FOR_EVER
	entryLeft[n] = TTL
#else
	skip
#endif
}
inline leave(n) { entry[n] = 0; entryLeft[n] = 0 }

/* line_acquire.lua: the lock, if it is free and no entry is before n, or an entry. */
inline acquire(n, t) {
	if
	:: key == n -> setLease(); answer = granted
	:: key == 0 -> key = n; setLease(); leave(n); answer = granted
	:: else -> entry[n] = (entry[n] == 0 -> t : entry[n]); setEntry(n); answer = waits
	fi
}

inline retire() {
	if
#ifndef NO_RETIRE
	:: life == name -> life++
#endif
	:: else
	fi
}

inline forget() { phase = idle; name = 0; ticket = 0; proof = 0; age = 0; doubt = 0; unsure = 0; notified = 0; polling = 0; polled = 0; answer = silent }

inline giveUp() { retire(); undo[name] = 1; forget() }

inline holds(a) {
	proof = (TTL - MARGIN > a -> TTL - MARGIN - a : 0); polling = 0; polled = 0; age = 0; notified = 0; answer = silent;
	if
	:: proof == 0 -> printf("the grant comes too late, and is undone\n"); giveUp()
	:: else -> phase = held; printf("the waiter holds the lock as %d, proven for %d ticks\n", name, proof)
	fi
}

/* Line.believe: a grant in a message. */
inline believe() {
	if
#ifdef NO_PROOF
	:: !unsure -> holds(0)
#elif defined(BELIEVES_UNSURE)
	:: age < TTL - MARGIN -> holds(age)
#else
	:: !unsure && age < TTL - MARGIN -> holds(age)
#endif
	:: else -> printf("the message proves nothing\n"); notified = 0
	fi
}

proctype waiter() {
	do
	/* lineWaiter.enqueue */
	:: d_step { phase == idle && life <= LIVES && tickets < TICKETS ->
		name = life; tickets++; ticket = tickets; phase = asking; answer = silent;
		printf("the waiter asks as %d, ticket %d\n", name, ticket) }
	:: d_step { phase == asking && !doubt -> doubt = 1; late[name] = ticket; answer = silent; age = 0; printf("the waiter asks again\n") }
	:: d_step { phase == asking -> late[name] = ticket; printf("the waiter gives up\n"); giveUp() }
	:: d_step { phase == asking && answer == granted ->
		if
		:: doubt -> retire()
		:: else
		fi;
		holds(age); check() }
	:: d_step { phase == asking && answer == waits ->
		if
		:: doubt -> retire(); unsure = 1
		:: else
		fi;
		phase = waiting; answer = silent; printf("the waiter receives the answer that it waits\n");
		if
		:: notified -> believe()
		:: else
		fi;
		check() }
	/* lineWaiter.poll, and Line.Update */
	:: d_step { phase == waiting && !polling -> polling = 1; polled = 0; answer = silent }
	:: d_step { phase == waiting && polling && answer == waits -> age = polled; polling = 0; polled = 0; answer = silent; printf("the waiter receives the answer that it waits\n") }
	:: d_step { phase == waiting && polling && answer == granted -> printf("the waiter receives the answer that it was granted\n"); holds(polled); check() }
	:: d_step { phase == waiting && polling && answer == none -> printf("the waiter receives the answer that its entry is gone\n"); retire(); forget() }
	:: d_step { phase == waiting && polling -> polling = 0; polled = 0; answer = silent; printf("a poll is not answered\n") }
	/* lineWaiter.giveUp */
	:: d_step { phase == waiting -> printf("the waiter gives up\n"); giveUp() }
	/* hold.unlock and release, which is answered */
	:: d_step { valid -> printf("the waiter unlocks\n");
		if
		:: key == name -> free()
		:: else
		fi;
		leave(name); forget() }
	:: d_step { phase == held && proof == 0 -> printf("its lease is over: lost\n"); giveUp() }
	:: d_step { phase != dead -> printf("the process dies\n"); forget(); phase = dead }
	od
}

inline deliver(t) {
	if
#ifdef NO_TICKET
	:: phase == asking -> notified = 1
	:: phase == waiting -> believe()
#else
	:: phase == asking && ticket == t -> notified = 1
	:: phase == waiting && ticket == t -> believe()
#endif
	:: else
	fi
}

proctype redis() {
	do
	:: d_step { phase == asking && answer == silent -> acquire(name, ticket); printf("Redis: %d: %e\n", name, answer); check() }
	/* line_poll.lua */
	:: d_step { phase == waiting && polling && answer == silent && entry[name] != 0 -> setEntry(name); answer = waits; printf("Redis: a poll: %d waits\n", name) }
	:: d_step { phase == waiting && polling && answer == silent && entry[name] != 0 && key == 0 ->
		key = name; setLease(); leave(name); answer = granted; printf("Redis: a poll: %d has the lock now\n", name); check() }
	:: d_step { phase == waiting && polling && answer == silent && entry[name] == 0 && key == name -> setLease(); answer = granted; printf("Redis: a poll: %d has the lock\n", name) }
	:: d_step { phase == waiting && polling && answer == silent && entry[name] == 0 && key != name -> answer = none; printf("Redis: a poll: %d has no entry\n", name) }
	/* another owner */
	:: d_step { key == 0 -> key = ANOTHER; setLease(); printf("another owner has the lock\n"); check() }
	:: d_step { key == ANOTHER -> free(); printf("another owner releases it\n") }
	od
}

/* Delayed copies for a name; and the grant to its entry, by the release of another owner or by a poll of another process. */
proctype network(byte n) {
	do
	:: d_step { (key == 0 || key == ANOTHER) && entry[n] != 0 -> key = n; setLease(); message[entry[n]] = 1;
		printf("Redis: the lock is granted to %d, ticket %d\n", n, entry[n]); leave(n); check() }
	:: d_step { late[n] != 0 && answer == silent -> acquire(n, late[n]); printf("Redis: a late request of %d: %e\n", n, answer); answer = silent; check() }
	:: d_step { undo[n] -> leave(n); printf("Redis: an undo of %d\n", n);
		if
		:: key == n -> free()
		:: else
		fi;
		check() }
	od
}

proctype messages(byte t) {
	do
	:: d_step { message[t] -> printf("a message: ticket %d is granted\n", t); deliver(t); check() }
	od
}

inline tick(d) {
	proof = (proof > 0 -> proof - 1 : 0);
	age = ((phase == asking || phase == waiting) && age < TTL -> age + 1 : age);
	polled = (polling && polled < TTL -> polled + 1 : polled);
	for (i : 1 .. LIVES) {
		if
		:: entryLeft[i] > 0 -> entryLeft[i]--;
			if
			:: entryLeft[i] == 0 -> leave(i)
			:: else
			fi
		:: else
		fi
	};
	if
	:: key != 0 && left <= d -> free(); printf("a tick; the lease runs out on Redis\n")
	:: key != 0 && left > d -> left = left - d; fast = (d == 2 || fast); printf("a tick; the lease has %d left\n", left)
	:: else -> printf("a tick\n")
	fi
}

proctype clock() {
	do
	:: d_step { true -> tick(1); check() }
	:: d_step { key != 0 && !fast -> printf("the server's clock is ahead: "); tick(2); check() }
	od
}

init {
	atomic {
		byte n;
		run waiter();
		run redis();
		for (n : 1 .. LIVES) { run network(n) }
		for (n : 1 .. TICKETS) { run messages(n) }
		run clock()
	}
}
