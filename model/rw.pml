/* Readers, and a writer with a claim.
 *
 * Modelled: a reader and a writer of two processes, and another reader anywhere else. The lock is a hash with a mode, a
 * lease, and a field for each hold. Each read hold also has a timeout key. A writer that finds readers claims the lock: from
 * GRACE ticks later, while the claim lives, no new reader gets the lock. Commands are answered, or given up. A copy that was
 * given up is executed at any time, any number of times. So is an undo.
 * With -DLIVE no command is lost, and every holder releases the lock. Then the writer is served.
 *
 * Left out, and why that is sound:
 *   - Repeated copies, hold counts, tokens and hand-overs of writers: as for a plain lock (name.pml).
 *   - Owners that write and read: they get the lock in spite of the claim, and no other owner can meanwhile.
 *   - The other reader's commands: it gets the lock whenever it may, and leaves or dies at any time.
 *   - Leases of full length. Each ends a tick sooner, as by a clock that is ahead.
 *   - Messages. A writer waits by asking again; messages are hints that make it ask sooner.
 *
 * gate: -DWRITER_HAS_ONE_LIFE
 * gate: -DLIVE
 * hand:
 * hand: -DLIVES=3
 * hand: -DTTL=4
 * off: NO_RETIRE exclusion: a name is used again although the outcome of a command is unknown
 * off: NO_MARGIN exclusion: the local deadline is as late as the requested lease
 * off: HASH_NOT_LENGTHENED exclusion: a reader that joins others does not raise the lease of the lock
 * off: NO_TIMEOUT_KEYS lease_ends: a read hold lives as long as the lock
 * off: RENEW_CREATES stays_free: a reader's renewal creates a hold that does not exist
 * off: CLAIM_FOR_EVER claim_ends: a claim has no lease
 * off: NO_CLAIM served -DLIVE: a waiting writer does not exclude new readers
 */
#include "common.pml"

mtype = { idle, asking, waiting, held, ending }
mtype = { none, take, renew, release }
mtype = { silent, yes, no }
mtype = { reader, writer }
#define who(o) ((o) == READER -> reader : writer)
mtype = { exclusion, known_loss, lease_ends, stays_free, claim_ends }

#ifndef LIVES
#define LIVES 2
#endif
#define GRACE 1
#define LEASE (TTL - 1)                  /* as Redis' clock has it */
#define READER 0
#define WRITER 1
#define OTHER 0                          /* the other reader's index among the names of readers */

/* Redis: the hash, the timeout keys, and the claim. */
byte writes, left;                                /* writes: the writer's name */
byte claim, begins, claimant;                     /* claim: what its lease has left; claimant 0: there is none */
bool reads[LIVES+1];
byte timeout_key[LIVES+1];

/* The reader and the writer. */
byte life[2], name[2], proof[2], age[2];
mtype phase[2] = idle, command[2] = none, answer[2] = silent;
bool released[LIVES+1];
byte due;                                         /* the writer asks again in so many ticks */

/* The network: of each name. */
bool lateTakeR[LIVES+1], lateRenewR[LIVES+1], lateReleaseR[LIVES+1];
bool lateTakeW[LIVES+1], lateRenewW[LIVES+1], lateReleaseW[LIVES+1];

#ifdef LIVE
bool beat;                                        /* another one for each tick */
#endif

mtype result = silent;
byte i, longest;

#define valid(o) (phase[o] == held && proof[o] > 0)
#ifdef NO_TIMEOUT_KEYS
#define alive(n) reads[n]
#else
#define alive(n) (reads[n] && timeout_key[n] > 0)
#endif

inline check() {
	promise(exclusion, !valid(WRITER) || !valid(READER) && !(reads[OTHER] && timeout_key[OTHER] > 0));
	promise(known_loss, !valid(WRITER) || writes == name[WRITER] && left >= proof[WRITER]);
	promise(known_loss, !valid(READER) || writes == 0 && reads[name[READER]] && timeout_key[name[READER]] >= proof[READER] && left >= proof[READER]);
	promise(lease_ends, left > 0 || writes == 0 && !reads[0] && !reads[1] && !reads[LIVES]);
	promise(claim_ends, claimant == 0 || claim > 0);
	for (i : 1 .. LIVES) { promise(stays_free, !released[i] || !reads[i] || lateTakeR[i]) }
	i = 0; result = silent; longest = 0
}

inline drop() {
	writes = 0; left = 0;
	for (i : 0 .. LIVES) { reads[i] = 0; timeout_key[i] = 0 }
}

/* survey: drops the dead; longest is what the longest live reader has left, 0 if there is none. */
inline survey() {
	longest = 0;
	for (i : 0 .. LIVES) {
		if
		:: alive(i) ->
			promise(lease_ends, timeout_key[i] > 0);
			longest = (timeout_key[i] > longest -> timeout_key[i] : longest)
		:: else -> reads[i] = 0
		fi
	}
}

inline lengthen() { left = (left < LEASE -> LEASE : left) }

/* rw_read.lua */
inline takeRead(n) {
	if
	:: writes != 0 -> result = no
	:: writes == 0 && alive(n) -> timeout_key[n] = LEASE; lengthen(); result = yes
	:: writes == 0 && !alive(n) && claimant != 0 && begins == 0 -> result = no
	:: else ->
#ifdef HASH_NOT_LENGTHENED
		left = (left == 0 -> LEASE : left);
#else
		lengthen();
#endif
		reads[n] = 1; timeout_key[n] = LEASE; result = yes
	fi
}

/* rw_read_renew.lua */
inline renewRead(n) {
	if
	:: alive(n) && writes == 0 -> timeout_key[n] = LEASE; lengthen(); result = yes
#ifdef RENEW_CREATES
	:: !alive(n) && writes == 0 -> reads[n] = 1; timeout_key[n] = LEASE; lengthen(); result = yes
#endif
	:: else -> result = no
	fi
}

/* rw_read_release.lua */
inline releaseRead(n) {
	if
	:: !reads[n] -> result = no
	:: else -> reads[n] = 0; timeout_key[n] = 0; survey();
		if
		:: longest == 0 -> drop()
		:: else -> left = longest
		fi;
		result = yes
	fi
}

/* rw_write.lua */
inline takeWrite(n) {
	longest = 0;
	if
	:: writes == n -> lengthen(); result = yes
	:: writes != 0 && writes != n -> result = no
	:: else -> survey();
		if
		:: longest > 0 -> result = no;
#ifndef NO_CLAIM
			begins = (claimant != 0 && begins < GRACE -> begins : GRACE); claimant = n;
#ifndef CLAIM_FOR_EVER
			claim = LEASE
#endif
#endif
		:: else -> drop(); writes = n; left = LEASE; claim = 0; begins = 0; claimant = 0; result = yes
		fi
	fi
}

inline renewWrite(n) {
	if
	:: writes == n -> lengthen(); result = yes
	:: else -> result = no
	fi
}

/* rw_write_release.lua: a claim stays for a moment, as no one's */
inline releaseWrite(n) {
	if
	:: claimant == n -> claim = (claim > 0 -> 1 : 0); claimant = LIVES + 1
	:: else
	fi;
	if
	:: writes == n -> drop(); result = yes
	:: else -> result = no
	fi
}

inline execute(o, c, n) {
	if
	:: o == READER && c == take -> takeRead(n)
	:: o == READER && c == renew -> renewRead(n)
	:: o == READER && c == release -> releaseRead(n)
	:: o == WRITER && c == take -> takeWrite(n)
	:: o == WRITER && c == renew -> renewWrite(n)
	:: o == WRITER && c == release -> releaseWrite(n)
	fi
}

inline retire(o) {
	if
#ifndef NO_RETIRE
	:: life[o] == name[o] -> life[o]++
#endif
	:: else
	fi
}

inline undo(o) {
	retire(o);
	if
	:: o == READER -> lateReleaseR[name[o]] = 1
	:: else -> lateReleaseW[name[o]] = 1
	fi
}

inline leaveCopy(o) {
	retire(o);
	if
	:: o == READER && command[o] == take -> lateTakeR[name[o]] = 1
	:: o == READER && command[o] == renew -> lateRenewR[name[o]] = 1
	:: o == READER && command[o] == release -> lateReleaseR[name[o]] = 1
	:: o == WRITER && command[o] == take -> lateTakeW[name[o]] = 1
	:: o == WRITER && command[o] == renew -> lateRenewW[name[o]] = 1
	:: o == WRITER && command[o] == release -> lateReleaseW[name[o]] = 1
	fi
}

inline send(o, c) { command[o] = c; answer[o] = silent; age[o] = 0 }
inline done(o) { command[o] = none; answer[o] = silent; age[o] = 0 }
inline over(o) { phase[o] = idle; proof[o] = 0; name[o] = 0; done(o) }

inline onAnswer(o) {
	if
	:: command[o] == take && answer[o] == yes && TTL - MARGIN > age[o] ->
		phase[o] = held; proof[o] = TTL - MARGIN - age[o]; done(o);
		printf("the %e holds the lock as %d, proven for %d ticks\n", who(o), name[o], proof[o])
	:: command[o] == take && answer[o] == yes && TTL - MARGIN <= age[o] -> undo(o); over(o)
	:: command[o] == take && answer[o] == no && o == READER -> over(o)
	:: command[o] == take && answer[o] == no && o == WRITER -> done(o); phase[o] = waiting; due = 1
	:: command[o] == renew && answer[o] == yes ->
		proof[o] = (TTL - MARGIN > age[o] && TTL - MARGIN - age[o] > proof[o] -> TTL - MARGIN - age[o] : proof[o]); done(o)
	:: command[o] == renew && answer[o] == no -> printf("the %e: Redis does not have it: lost\n", who(o)); undo(o); over(o)
	:: command[o] == release && answer[o] == yes -> printf("the %e: Unlock returns nil\n", who(o));
		released[name[o]] = (released[name[o]] || o == READER); over(o)
	:: command[o] == release && answer[o] == no -> printf("the %e: Unlock returns ErrLost\n", who(o)); retire(o); over(o)
	fi
}

proctype owner(bit o) {
	do
	/* readerTurn.ask, writerTurn.ask */
	:: d_step { phase[o] == idle && life[o] <= LIVES -> name[o] = life[o]; phase[o] = asking;
		released[name[o]] = (o == WRITER && released[name[o]]); send(o, take); printf("the %e asks for the lock as %d\n", who(o), name[o]) }
	:: d_step { phase[o] == waiting && command[o] == none -> send(o, take); printf("the %e asks again\n", who(o)) }
	:: d_step { command[o] != none && answer[o] == silent -> execute(o, command[o], name[o]); answer[o] = result;
		printf("Redis: %e for the %e as %d: %e\n", command[o], who(o), name[o], result); check() }
	:: d_step { command[o] != none && answer[o] != silent -> onAnswer(o); check() }
	/* hold.unlock and release */
#ifdef LIVE
	:: d_step { valid(o) && command[o] == none -> phase[o] = ending; proof[o] = 0; send(o, release); printf("the %e unlocks\n", who(o)) }
#else
	:: d_step { valid(o) && (command[o] == none || command[o] == renew) ->
		if
		:: command[o] == renew -> leaveCopy(o)
		:: else
		fi;
		phase[o] = ending; proof[o] = 0; send(o, release); printf("the %e unlocks\n", who(o)) }
	:: d_step { valid(o) && command[o] == none && proof[o] < TTL - MARGIN -> send(o, renew); printf("the %e renews\n", who(o)) }
	/* no answer comes */
	:: d_step { command[o] == renew -> leaveCopy(o); done(o); printf("the %e: a renewal is not answered\n", who(o)) }
	:: d_step { command[o] == take || command[o] == release -> leaveCopy(o); undo(o); over(o); printf("the %e gives up\n", who(o)) }
	/* writerTurn.withdraw */
	:: d_step { phase[o] == waiting && command[o] == none -> undo(o); over(o); printf("the %e withdraws its claim\n", who(o)) }
#endif
	/* hold.check */
	:: d_step { phase[o] == held && proof[o] == 0 -> printf("the %e: its lease is over: lost\n", who(o));
		if
		:: command[o] != none -> leaveCopy(o)
		:: else
		fi;
		undo(o); over(o); check() }
	od
}

proctype copies(byte n) {
	do
	:: d_step { lateTakeR[n] -> takeRead(n); printf("Redis: a late take of reader %d: %e\n", n, result); check() }
	:: d_step { lateRenewR[n] -> renewRead(n); printf("Redis: a late renewal of reader %d: %e\n", n, result); check() }
	:: d_step { lateReleaseR[n] -> releaseRead(n); printf("Redis: a late release or undo of reader %d: %e\n", n, result); check() }
	:: d_step { lateTakeW[n] -> takeWrite(n); printf("Redis: a late take of writer %d: %e\n", n, result); check() }
	:: d_step { lateRenewW[n] -> renewWrite(n); printf("Redis: a late renewal of writer %d: %e\n", n, result); check() }
	:: d_step { lateReleaseW[n] -> releaseWrite(n); printf("Redis: a late release or undo of writer %d: %e\n", n, result); check() }
	od
}

/* The other reader. */
proctype another() {
	do
	:: d_step { !alive(OTHER) -> takeRead(OTHER); printf("another reader asks: %e\n", result); check() }
	:: d_step { alive(OTHER) -> releaseRead(OTHER); printf("another reader goes\n"); check() }
#ifndef LIVE
	:: d_step { alive(OTHER) -> renewRead(OTHER); printf("another reader renews\n"); check() }
#endif
	od
}

proctype clock() {
	do
#ifdef LIVE
	/* The writer is not paused: it asks again in time. Nor are answers late for ever. */
	:: d_step { !(phase[WRITER] == waiting && due == 0) && command[READER] == none && command[WRITER] == none ->
#else
	:: d_step { true ->
#endif
#ifdef LIVE
		beat = !beat;
#endif
		printf("a tick\n"); due = (due > 0 -> due - 1 : 0);
		proof[0] = (proof[0] > 0 -> proof[0] - 1 : 0); proof[1] = (proof[1] > 0 -> proof[1] - 1 : 0);
		age[0] = (command[0] != none && age[0] < TTL -> age[0] + 1 : age[0]);
		age[1] = (command[1] != none && age[1] < TTL -> age[1] + 1 : age[1]);
		for (i : 0 .. LIVES) { timeout_key[i] = (timeout_key[i] > 0 -> timeout_key[i] - 1 : 0) };
		begins = (begins > 0 -> begins - 1 : 0);
		if
		:: claim == 1 -> claim = 0; begins = 0; claimant = 0
		:: claim > 1 -> claim--
		:: else
		fi;
		if
		:: left == 1 -> drop(); printf("the lease of the lock runs out\n")
		:: left > 1 -> left--
		:: else
		fi;
		check() }
	od
}

init {
	atomic {
		byte n;
#ifdef WRITER_HAS_ONE_LIFE
		life[READER] = 1; life[WRITER] = LIVES;
#else
		life[READER] = 1; life[WRITER] = 1;
#endif
		run owner(READER);
		run owner(WRITER);
		for (n : 1 .. LIVES) { run copies(n) }
		run another();
		run clock()
	}
}

#ifdef LIVE
/* If time goes on. */
ltl served { ([]<> beat && []<> !beat) -> [] (phase[WRITER] == waiting -> <> (phase[WRITER] == held)) }
#endif
