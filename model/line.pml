/* A place in the line, and the grant that comes in a message.
 *
 * Modelled: one process with a waiter, and others that are anywhere else. The waiter asks for the lock or a place; it keeps
 * the place by polls; the release of another owner may give it the lock and tells it by a message with its ticket.
 * Messages are lost, late and repeated. The request for the place may be sent again or given up: then a copy is
 * executed at any time, any number of times; so is an undo. The waiter may give up, be paused, or die.
 *
 * Left out, and why that is sound:
 *   - The order of the line, and who is passed over: a release may give the lock to this place or not.
 *     They are in turns.pml, and concern no hold's validity.
 *   - Renewals, re-entry, and what a release in doubt does: a lock that was granted is like any other (name.pml).
 *   - The other owners' commands: see name.pml.
 *   - Tickets and identities without end: a process that has used them up asks no more.
 *
 * gate:
 * hand: -DTICKETS=4 -DLIVES=3
 * hand: -DTTL=4
 * off: NO_PROOF exclusion: the lease is counted from the message, however late that comes, not from the last answer
 * off: NO_TICKET exclusion: a message names the waiter, not its ticket
 * off: BELIEVES_UNSURE exclusion: a message proves, though the request for the place was sent twice
 * off: NO_RETIRE exclusion: the name of a place that was given up is used again
 * off: NO_MARGIN exclusion: the local deadline is as late as the lease that was asked for
 * off: PLACE_FOR_EVER place_ends: a place has no lease
 */
#include "common.pml"

mtype = { idle, asking, waiting, held, dead }
mtype = { silent, granted, waits, none }               /* answers */
mtype = { exclusion, known_loss, place_ends }

#ifndef LIVES
#define LIVES 2
#endif
#ifndef TICKETS
#define TICKETS 3
#endif
#define ANOTHER (LIVES+1)

/* Redis: the lock; the places of the names, the ticket of each and what its lease has left. */
byte key, left, place[LIVES+1], placeLeft[LIVES+1];
bool fast;

/* The process. */
mtype phase = idle, answer = silent;
byte life = 1, name, ticket, tickets, proof, age, polled;    /* age: of the last answer "you wait", or of what is asked */
bool doubt, unsure, told, polling;

/* The network. */
byte late[LIVES+1];                                  /* the ticket of a late request for a place */
bool undo[LIVES+1], message[TICKETS+1];

byte i;

#define valid (phase == held && proof > 0)
#define surely (left - (1 - fast))

inline check() {
	promise(exclusion, !valid || key != ANOTHER);
	promise(known_loss, !valid || key == name && surely >= proof);
	for (i : 1 .. LIVES) { promise(place_ends, place[i] == 0 || placeLeft[i] > 0) }
	i = 0
}

inline setLease() { left = TTL; fast = 0 }
inline free() { key = 0; left = 0; fast = 0 }
inline setPlace(n) {
#ifndef PLACE_FOR_EVER
	placeLeft[n] = TTL
#else
	skip
#endif
}
inline leave(n) { place[n] = 0; placeLeft[n] = 0 }

/* line_acquire.lua: the lock, if that is free and no one stands before n, or a place. */
inline acquire(n, t) {
	if
	:: key == n -> setLease(); answer = granted
	:: key == 0 -> key = n; setLease(); leave(n); answer = granted
	:: else -> place[n] = (place[n] == 0 -> t : place[n]); setPlace(n); answer = waits
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

inline forget() { phase = idle; name = 0; ticket = 0; proof = 0; age = 0; doubt = 0; unsure = 0; told = 0; polling = 0; polled = 0; answer = silent }

inline giveUp() { retire(); undo[name] = 1; forget() }

inline holds(a) {
	proof = (TTL - MARGIN > a -> TTL - MARGIN - a : 0); polling = 0; polled = 0; age = 0; told = 0; answer = silent;
	if
	:: proof == 0 -> printf("the grant comes too late, and is undone\n"); giveUp()
	:: else -> phase = held; printf("the waiter holds the lock as %d, proven for %d ticks\n", name, proof)
	fi
}

/* Line.believe: the message told of a grant. */
inline believe() {
	if
#ifdef NO_PROOF
	:: !unsure -> holds(0)
#elif defined(BELIEVES_UNSURE)
	:: age < TTL - MARGIN -> holds(age)
#else
	:: !unsure && age < TTL - MARGIN -> holds(age)
#endif
	:: else -> printf("the message proves nothing\n"); told = 0
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
		phase = waiting; answer = silent; printf("the waiter hears that it waits\n");
		if
		:: told -> believe()
		:: else
		fi;
		check() }
	/* lineWaiter.poll, and Line.Learn */
	:: d_step { phase == waiting && !polling -> polling = 1; polled = 0; answer = silent }
	:: d_step { phase == waiting && polling && answer == waits -> age = polled; polling = 0; polled = 0; answer = silent; printf("the waiter hears that it waits\n") }
	:: d_step { phase == waiting && polling && answer == granted -> printf("the waiter hears that it was granted\n"); holds(polled); check() }
	:: d_step { phase == waiting && polling && answer == none -> printf("the waiter hears that its place is gone\n"); retire(); forget() }
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
	:: phase == asking -> told = 1
	:: phase == waiting -> believe()
#else
	:: phase == asking && ticket == t -> told = 1
	:: phase == waiting && ticket == t -> believe()
#endif
	:: else
	fi
}

proctype redis() {
	do
	:: d_step { phase == asking && answer == silent -> acquire(name, ticket); printf("Redis: %d: %e\n", name, answer); check() }
	/* line_poll.lua */
	:: d_step { phase == waiting && polling && answer == silent && place[name] != 0 -> setPlace(name); answer = waits; printf("Redis: a poll: %d waits\n", name) }
	:: d_step { phase == waiting && polling && answer == silent && place[name] != 0 && key == 0 ->
		key = name; setLease(); leave(name); answer = granted; printf("Redis: a poll: %d has the lock now\n", name); check() }
	:: d_step { phase == waiting && polling && answer == silent && place[name] == 0 && key == name -> setLease(); answer = granted; printf("Redis: a poll: %d has the lock\n", name) }
	:: d_step { phase == waiting && polling && answer == silent && place[name] == 0 && key != name -> answer = none; printf("Redis: a poll: %d has no place\n", name) }
	/* another owner */
	:: d_step { key == 0 -> key = ANOTHER; setLease(); printf("another owner has the lock\n"); check() }
	:: d_step { key == ANOTHER -> free(); printf("another owner gives it back\n") }
	od
}

/* What comes late for a name; and the grant to its place, by the release of another owner or by a poll of another process. */
proctype network(byte n) {
	do
	:: d_step { (key == 0 || key == ANOTHER) && place[n] != 0 -> key = n; setLease(); message[place[n]] = 1;
		printf("Redis: another owner gives the lock to %d, ticket %d\n", n, place[n]); leave(n); check() }
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
		:: placeLeft[i] > 0 -> placeLeft[i]--;
			if
			:: placeLeft[i] == 0 -> leave(i)
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
