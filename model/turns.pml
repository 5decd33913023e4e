/* The order of the line: processes that died or are not subscribed, and foreign waiters.
 *
 * Modelled: three processes that lock and unlock for ever, and a foreign waiter, which has no entry in the line and takes the
 * lock when it is free. The first process may lose its subscription, which Redis notices. The last one may die at any time;
 * Redis may notice, or continue to count it as a subscriber. Messages may be lost. A release grants the lock to the first
 * live entry that is not skipped. From time to time it leaves the lock to foreign waiters for a window.
 *
 * Left out, and why that is sound:
 *   - Unknown outcomes, and the proof of a grant: line.pml. Here a command is executed and answered at once.
 *   - Time without bounds: a process that lives polls in time, a foreign waiter that was woken asks within the window, and a
 *     holder unlocks within its lease. Otherwise no lock can promise to serve.
 *   - Several entries of one process, and their order: the tests of the scripts.
 *   - The schedule of foreign waiters: their turn comes after every second release, not by the clock, and not less often
 *     when none comes.
 *
 * gate:
 * gate: -DLIVE -DWAITER
 * gate: -DLIVE -DFOREIGN
 * off: NEWCOMERS_PASS in_order: a newcomer takes a free lock although others wait for it
 * off: NO_SKIPPING dead_cost_nothing: the first in line gets the lock, even if its process is not subscribed
 * off: NO_POLLS served -DLIVE -DWAITER: a waiter relies on messages
 * off: MARKED_FOR_EVER served -DLIVE -DWAITER -DNO_FOREIGN_TURN: a skipped entry is not served again when its process polls
 * off: NO_EXPIRY served -DLIVE -DWAITER: the lock of a process that has died does not end by itself
 * off: NO_LINE served -DLIVE -DWAITER: a release leaves the lock free for all
 * off: NO_FOREIGN_TURN foreign_let_in -DLIVE -DFOREIGN: a release with a line always grants the lock to the line
 */
#include "common.pml"

mtype = { idle, waiting, held, dead }
mtype = { in_order, dead_cost_nothing, one_holder }

#define N 3
#define FREE N
#define FOREIGN_HAS (N+1)

/* Redis: who has the lock, and the line. */
byte key = FREE, remains, line[N] = N, length, mark[N];
byte lives[N];                           /* the rest of the lease of an entry */
bool listens[N], window, turn;           /* listens: the process is subscribed; window: the lock is left to foreign waiters; turn: the next release does that */

mtype phase[N] = idle;
byte due[N];                             /* a poll is due in so many ticks */
bool asked;                              /* the foreign waiter has asked in this window */
bool beat;
byte i, j, next;

inline check() {
	promise(one_holder, (phase[0] == held) + (phase[1] == held) + (phase[2] == held) + (key == FOREIGN_HAS) <= 1);
	i = 0; j = 0; next = 0
}

inline setLease() { remains = TTL }

inline leave(p) {
	j = 0;
	for (i : 0 .. N-1) {
		if
		:: line[i] != p && line[i] != N -> line[j] = line[i]; j++
		:: else
		fi
	};
	for (i : j .. N-1) { line[i] = N };
	length = j; lives[p] = 0; mark[p] = 0
}

inline enqueue(p) { line[length] = p; length++; lives[p] = TTL; mark[p] = (listens[p] -> 0 : 2); due[p] = 1 }

#ifdef NO_SKIPPING
#define skipped(p) false
#else
#define skipped(p) (mark[p] == 1 || mark[p] == 0 && !listens[p])
#endif

/* serve, of line_prelude.lua: the free lock is granted to the first live entry that is not skipped. */
inline serve() {
	next = N; i = 0;
	do
	:: i < length && next == N ->
		if
		:: skipped(line[i]) -> mark[line[i]] = 1
		:: else -> next = line[i]
		fi;
		i++
	:: else -> break
	od;
	if
	:: next != N ->
		promise(dead_cost_nothing, phase[next] != dead || listens[next]);
		leave(next); key = next; setLease(); printf("Redis grants the lock to process %d\n", next)
	:: else -> key = FREE; remains = 0
	fi
}

#ifdef NO_LINE
#define mayTake(p) (key == FREE)
#elif defined(NEWCOMERS_PASS)
#define mayTake(p) (key == FREE && !window)
#else
#define mayTake(p) (key == FREE && !window && length == 0)
#endif

/* process p asks for the lock or an entry */
inline ask(p) {
	if
	:: mayTake(p) ->
#ifndef NO_LINE
		for (i : 0 .. N-1) { promise(in_order, line[i] == N || mark[line[i]] != 0) };
#endif
		key = p; setLease(); phase[p] = held; printf("process %d takes the lock\n", p)
	:: else ->
		enqueue(p); phase[p] = waiting; printf("process %d waits\n", p);
		if
		:: key == FREE && !window -> serve(); check()
		:: else
		fi
	fi
}

/* line_poll.lua */
inline poll(p) {
	due[p] = 1; printf("process %d polls\n", p);
	if
	:: lives[p] > 0 -> lives[p] = TTL;
#ifndef MARKED_FOR_EVER
		mark[p] = (listens[p] -> 0 : 2);
#endif
		if
		:: key == FREE && !window ->
#ifdef NO_LINE
			leave(p); key = p; setLease()
#else
			serve()
#endif
		:: else
		fi
	:: lives[p] == 0 && key != p -> enqueue(p)
	:: else
	fi;
	if
	:: key == p -> phase[p] = held; setLease(); printf("process %d: the answer is that it holds the lock\n", p)
	:: else
	fi
}

inline release(p) {
	printf("process %d unlocks\n", p); phase[p] = idle;
	if
	:: key == p ->
		key = FREE; remains = 0;
		if
#ifdef NO_LINE
		:: true
#else
#ifndef NO_FOREIGN_TURN
		:: length > 0 && turn -> turn = 0; window = 1; asked = 0; printf("the lock is left to foreign waiters\n")
#endif
		:: else -> turn = 1; serve()
#endif
		fi
	:: else
	fi
}

proctype process(byte p) {
	do
	:: d_step { phase[p] == idle -> ask(p); check() }
	:: d_step { phase[p] == held -> release(p); check() }
	/* the message: p is subscribed, and it is not lost */
	:: d_step { phase[p] == waiting && key == p && listens[p] -> phase[p] = held; printf("process %d receives the message of its grant\n", p); check() }
#ifndef NO_POLLS
	:: d_step { phase[p] == waiting && due[p] == 0 -> poll(p); check() }
#endif
	od
}

#define foreignMay (key == FREE && (window || length == 0))

/* A foreign waiter waits for the lock to be free, and is woken when the lock is left to foreign waiters. */
proctype foreign() {
	do
	:: d_step { foreignMay -> key = FOREIGN_HAS; setLease(); window = 0; asked = 1; printf("a foreign waiter takes the lock\n"); check() }
	:: d_step { key == FOREIGN_HAS -> key = FREE; remains = 0; printf("a foreign waiter releases the lock\n") }
	od
}

proctype disconnection() {
	if
	:: d_step { true -> listens[0] = 0; printf("process 0 is not subscribed from now on\n") }
	:: true
	fi
}

proctype death() {
	if
	:: d_step { phase[2] != dead -> phase[2] = dead; listens[2] = 0; printf("process 2 dies\n") }
	:: d_step { phase[2] != dead -> phase[2] = dead; printf("process 2 is cut off\n") }
	:: true
	fi
}

/* Before the next tick, a waiting process polls, unless its message arrives; holders unlock; the foreign waiter asks within its window. */
#ifdef NO_POLLS
#define inTime(p) (phase[p] != held)
#else
#define inTime(p) (phase[p] != held && (phase[p] != waiting || due[p] > 0))
#endif

proctype clock() {
	do
	:: d_step { inTime(0) && inTime(1) && inTime(2) && key != FOREIGN_HAS && !(window && !asked) ->
		printf("a tick\n"); beat = !beat; window = 0;
		for (i : 0 .. N-1) {
			due[i] = (due[i] > 0 -> due[i] - 1 : 0);
			lives[i] = (lives[i] > 0 -> lives[i] - 1 : 0)
		};
		for (next : 0 .. N-1) {
			if
			:: lives[next] == 0 -> leave(next)
			:: else
			fi
		};
#ifndef NO_EXPIRY
		if
		:: remains == 1 -> key = FREE; remains = 0; printf("the lease of the lock runs out\n")
		:: remains > 1 -> remains--
		:: else
		fi;
#endif
		check() }
	od
}

init {
	atomic {
		byte p;
		listens[0] = 1; listens[1] = 1; listens[2] = 1;
		for (p : 0 .. N-1) { run process(p) }
		run foreign();
		run disconnection();
		run death();
		run clock()
	}
}

/* If time goes on. */
#ifdef WAITER
ltl served { ([]<> beat && []<> !beat) -> [] (phase[0] == waiting -> <> (phase[0] == held)) }
#endif
#ifdef FOREIGN
ltl foreign_let_in { ([]<> beat && []<> !beat) -> []<> (foreignMay || key == FOREIGN_HAS) }
#endif
