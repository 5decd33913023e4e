/* Batches: holds that follow one another in one process under one lease. Their names are written to Redis afterwards.
 *
 * Modelled: one process with OWNERS owners, and another owner anywhere else. An Unlock lets the next owner enter at once,
 * under the proven deadline. Renames, one at a time, write the current name for all holds that have ended. The last holder
 * sends the release. A rename whose outcome is unknown is sent again until it is answered or its batch has ended. Copies
 * without an answer stay in the network for ever, and are executed at any time, any number of times.
 * With -DASYNC an Unlock may return before its answer, as with WithAsyncUnlock: its owner may hold the lock again meanwhile.
 * Or no rename is sent for it at all, as with WithLinger.
 * With -DFORCE the key may be deleted. Then a valid hold may be without a lock, on purpose, and its Unlock reports that,
 * unless a delayed copy of its acquisition has created the key again.
 *
 * Left out, and why that is sound:
 *   - The other owner's commands, the local queue, re-entries, and more identities: see name.pml.
 *   - Hand-overs by Redis, which name.pml has. Here it matters only that no owner enters meanwhile, as for a release.
 *   - The number of holds in a turn. The model allows any number, so each limit is covered.
 *   - The order of undos. A second undo during another one concerns other names.
 *
 * gate:
 * gate: -DFORCE -DLIVES=1 -DONLY=unlock_nil
 * hand: -DASYNC
 * hand: -DFORCE -DONLY=unlock_nil
 * hand: -DOWNERS=3
 * hand: -DLIVES=3
 * off: NO_RETIRE exclusion: a name is used again although the outcome of a rename to it, or from it, is unknown
 * off: NOTIFIED_FIRST known_loss: the waiters in a batch are notified of its end before its names are retired
 * off: ENTERS_DURING_RELEASE exclusion: an owner enters while the release is in flight
 * off: FRESH_LEASE exclusion: a hold that follows begins with a lease of its own, not with the rest of the proven lease
 * off: KEEPS_NAME no_false_loss -DASYNC: a hold that followed under a name that is retired by now is written under it
 * off: RENEWS_UNKNOWN no_false_loss: a renewal does not wait until Redis has the name of the hold
 * off: RENAME_CREATES stays_undone: a rename that finds neither name creates the lock
 * off: RENAME_SHORTENS exclusion: a rename sets the lease, even if the owner's is shorter
 * off: UNDO_REVERSED stays_undone: if the outcome of a rename is unknown, its new name is undone before the old one
 * off: OLD_ANSWER unlock_nil -DFORCE: an Unlock uses the answer to a rename that was sent before its hold ended
 */
#include "common.pml"

mtype = { idle, asking, held, ending, unlocking }           /* phases of an owner; unlocking: its Unlock waits for an answer */
mtype = { none, acquire, renew, rename, release }      /* commands */
mtype = { silent, yes, no }
mtype = { exclusion, known_loss, unlock_nil, no_false_loss, stays_undone }

#ifndef OWNERS
#define OWNERS 2
#endif
#ifndef LIVES
#define LIVES 2
#endif
#define NAMES (LIVES * OWNERS)
#define ANOTHER (NAMES+1)
#define NOBODY OWNERS
#define nameOf(o) (1 + identity * OWNERS + (o))
#define leaseOf(o) (TTL - (o) % 2)       /* the second owner's lease is shorter */

/* Redis. */
byte key, left;
bool fast, ghost;                        /* ghost: a delayed acquire created the key */
bool forced, remade;                     /* the key was deleted during a batch; and created again, by a delayed acquire */

/* The process: its identity, the batch, and the one command in flight. */
byte identity, holder = NOBODY, current, settled, sent, proof;
mtype command = none, answer = silent;
byte age, from, to, lease;
bool doubt, inTime, last;
bool unlocked;                           /* with ASYNC: an Unlock has returned that no rename was sent for */

/* An owner. */
mtype phase[OWNERS] = idle;
bool asked[OWNERS], taken[OWNERS];       /* asked: the rename in flight was sent for it; taken: its key was deleted */

/* The network. */
bool lateAcquire[NAMES+1], lateRenew[NAMES+1], lateRelease[NAMES+1], undone[NAMES+2];
byte lateRename[NAMES+1], lateLease[NAMES+1];
#ifdef NOTIFIED_FIRST
byte doubtNow, doubtFirst, doubtThen;    /* a batch that has ended, whose names are not retired yet */
#endif
byte undoFirst, undoThen, undoneFirst;    /* the undo under way, and what that has done */

mtype result = silent;
byte i;

#define valid (holder != NOBODY && phase[holder] == held && proof > 0)
#ifdef ASYNC
#define mayFollow(o) (phase[o] == idle || o == holder)
#else
#define mayFollow(o) (phase[o] == idle)
#endif
#define surely (left - (1 - fast))

inline check() {
	promise(exclusion, !valid || key != ANOTHER);
	promise(known_loss, !valid || (key == settled || key == sent) && key != 0 && surely >= proof);
	promise(stays_undone, key == 0 || !undone[key] || ghost);
	i = 0; result = silent
}

inline setLease(l) { left = l; fast = 0 }
inline free() { key = 0; left = 0; fast = 0; ghost = 0 }

inline lengthen(l) {
	if
	:: left < l -> setLease(l)
	:: else
	fi
}

inline execute(c, a, b, l) {
	result = no;
	if
	:: c == acquire && key == 0 -> key = a; setLease(l); result = yes
	:: (c == acquire || c == renew) && key == a -> lengthen(l); result = yes
	:: c == release && key == a -> free(); result = yes
#ifdef RENAME_SHORTENS
	:: c == rename && key == a -> key = b; setLease(l); result = yes
#else
	:: c == rename && key == a -> key = b; lengthen(l); result = yes
#endif
	:: c == rename && key == b && a != b -> lengthen(l); result = yes
#ifdef RENAME_CREATES
	:: c == rename && key == 0 -> key = b; setLease(l); result = yes
#endif
	:: else
	fi
}

inline retire(n) {
	if
#ifndef NO_RETIRE
	:: n != 0 && identity == (n-1) / OWNERS -> identity++
#endif
	:: else
	fi
}

inline undo(first, then) {
	retire(first); retire(then);
	if
	:: undoFirst == 0 && undoThen == 0 -> undoFirst = first; undoThen = then
	:: else
	fi;
	lateRelease[first] = 1;
	if
	:: then != 0 -> lateRelease[then] = 1
	:: else
	fi
}

inline send(c, a, b, l) {
	command = c; answer = silent; age = 0; doubt = 0; from = a; to = b; lease = l
}

inline done() { command = none; answer = silent; age = 0; doubt = 0; from = 0; to = 0; lease = 0; inTime = 0 }

inline leaveCopy() {
	doubt = 1;
	if
	:: command == acquire -> lateAcquire[from] = 1
	:: command == renew -> lateRenew[from] = 1
	:: command == release -> lateRelease[from] = 1
	:: command == rename -> lateRename[from] = to; lateLease[from] = lease
	fi
}

inline prove() {
	if
	:: lease - MARGIN > age && lease - MARGIN - age > proof -> proof = lease - MARGIN - age
	:: else
	fi
}

/* An Unlock of o returns nil. */
inline success(o) {
	promise(unlock_nil, !taken[o] || remade || command == release && doubt);
	phase[o] = idle; asked[o] = 0; taken[o] = 0; printf("owner %d: Unlock returns nil\n", o)
}

/* All Unlocks that wait return an error. */
inline fail() {
	for (i : 0 .. OWNERS-1) {
		if
		:: phase[i] == unlocking || phase[i] == ending ->
			phase[i] = idle; asked[i] = 0; taken[i] = 0; printf("owner %d: Unlock returns an error\n", i)
		:: else
		fi
	}
}

/* hold.giveUp: none of the names of a batch counts any more. */
inline giveUp(now, first, then) {
	retire(now);
	if
#ifdef UNDO_REVERSED
	:: then != 0 -> undo(then, first)
#else
	:: then != 0 -> undo(first, then)
#endif
	:: else -> undo(first, 0)
	fi
}

/* batch.end, by hold.giveUp: first the names are retired, then the waiting Unlocks are notified. */
inline over() {
	if
	:: command != none -> leaveCopy()
	:: else
	fi;
#ifdef NOTIFIED_FIRST
	doubtNow = current; doubtFirst = settled; doubtThen = sent;
#else
	giveUp(current, settled, sent);
#endif
	done(); fail();
	if
	:: holder != NOBODY -> phase[holder] = idle; taken[holder] = 0
	:: else
	fi;
	holder = NOBODY; current = 0; settled = 0; sent = 0; proof = 0; last = 0; unlocked = 0; forced = 0; remade = 0
}

inline ended() { holder = NOBODY; current = 0; settled = 0; sent = 0; proof = 0; last = 0; unlocked = 0; forced = 0; remade = 0 }

inline onAnswer() {
	if
	:: doubt -> retire(from); retire(to)
	:: else
	fi;
	if
	:: command == acquire && answer == yes && lease - MARGIN > age ->
		settled = from; current = from; proof = lease - MARGIN - age; phase[holder] = held; done();
		printf("owner %d: holds the lock as %d, proven for %d ticks\n", holder, current, proof)
	:: command == acquire && !(answer == yes && lease - MARGIN > age) ->
		if
		:: doubt || answer == yes -> undo(from, 0)
		:: else
		fi;
		phase[holder] = idle; done(); ended()
	:: command == renew && answer == yes -> prove(); done()
	:: command == rename && answer == yes ->
		settled = to; sent = 0;
		if
		:: phase[holder] == held -> prove()
		:: else
		fi;
		for (i : 0 .. OWNERS-1) {
			if
#ifdef OLD_ANSWER
			:: phase[i] == unlocking -> success(i)
#else
			:: phase[i] == unlocking && asked[i] -> success(i)
#endif
			:: else
			fi
		};
		done()
	:: (command == rename || command == renew) && answer == no ->
		printf("Redis has neither name: lost\n");
		promise(no_false_loss, forced || proof == 0);
		over()
	:: command == release ->
		if
		:: answer == yes || doubt && inTime ->
			for (i : 0 .. OWNERS-1) {
				if
				:: phase[i] == unlocking || phase[i] == ending -> success(i)
				:: else
				fi
			};
			if
			:: answer == no -> retire(from)
			:: else
			fi;
			done(); ended()
		:: else -> retire(from); fail(); done(); ended()
		fi
	fi
}

#define isRetired(n) (identity != ((n)-1) / OWNERS)
#define someoneWaits (unlocked || phase[0] == unlocking && !asked[0] || phase[1] == unlocking && !asked[1] || OWNERS == 3 && phase[OWNERS-1] == unlocking && !asked[OWNERS-1])

proctype owner(byte o) {
	do
	/* mutexTurn.ask */
	:: d_step { phase[o] == idle && holder == NOBODY && command == none && identity < LIVES ->
		holder = o; phase[o] = asking; send(acquire, nameOf(o), 0, leaseOf(o)); undone[nameOf(o)] = 0;
		printf("owner %d: asks for the lock as %d\n", o, from) }
	/* hold.unlock, and then hold.letIn and batch.handOver: the next owner enters before Redis has its name */
	:: d_step { phase[o] == idle && valid && identity < LIVES ->
		taken[holder] = forced; phase[holder] = unlocking;
		printf("owner %d: unlocks; owner %d follows as %d\n", holder, o, nameOf(o));
		holder = o; current = nameOf(o); phase[o] = held; undone[current] = 0;
#ifdef FRESH_LEASE
		proof = leaseOf(o) - MARGIN;
#endif
		check() }
#ifdef ASYNC
	/* the same, by an Unlock that returns at once: hold.detach */
	:: d_step { mayFollow(o) && valid && identity < LIVES ->
		printf("owner %d: unlocks, and does not wait; owner %d follows as %d\n", holder, o, nameOf(o));
		phase[holder] = idle; unlocked = 1; holder = o; current = nameOf(o); phase[o] = held; undone[current] = 0; check() }
	/* the same, after a hold that lingered: no rename is sent for it. hold.linger, mutexTurn.follow */
	:: d_step { mayFollow(o) && valid && identity < LIVES ->
		printf("owner %d: unlocks, and the lock lingers; owner %d follows as %d\n", holder, o, nameOf(o));
		phase[holder] = idle; holder = o; current = nameOf(o); phase[o] = held; undone[current] = 0; check() }
#endif
	/* hold.unlock without a local waiter: hold.finish */
	:: d_step { holder == o && valid ->
		taken[o] = forced; phase[o] = ending; last = 1; printf("owner %d: unlocks\n", o) }
	/* the next owner comes while the last one waits for its turn to send the release */
#ifdef ENTERS_DURING_RELEASE
	:: d_step { mayFollow(o) && holder != NOBODY && phase[holder] == ending && identity < LIVES && proof > 0 ->
#else
	:: d_step { mayFollow(o) && holder != NOBODY && phase[holder] == ending && identity < LIVES && proof > 0 && command != release ->
#endif
		unlocked = (unlocked || o == holder); phase[holder] = unlocking; holder = o; current = nameOf(o); phase[o] = held; last = 0; undone[current] = 0;
		printf("owner %d: follows as %d\n", o, current); check() }
	/* hold.awaitAnswer: WithUnlockTimeout */
	:: d_step { phase[o] == unlocking -> phase[o] = idle; asked[o] = 0; taken[o] = 0; retire(settled); retire(sent); retire(current);
		printf("owner %d: Unlock has no more time\n", o) }
	od
}

proctype process() {
	do
	:: d_step { command != none && answer == silent ->
		execute(command, from, to, lease); answer = result;
		printf("Redis: %e %d %d: %e\n", command, from, to, result); check() }
	:: d_step { command != none && answer != silent -> printf("the process receives %e to its %e\n", answer, command); onAnswer(); check() }
	:: d_step { command != none && !doubt -> printf("the process sends %e again\n", command);
		leaveCopy(); answer = silent; age = 0 }
	/* given up: a renewal, an acquisition, a release; a rename goes on */
	:: d_step { command == renew -> leaveCopy(); retire(from); done(); printf("the renewal is given up\n") }
	:: d_step { command == acquire -> leaveCopy(); undo(from, 0); phase[holder] = idle; done(); ended(); printf("the attempt is given up\n") }
	:: d_step { holder != NOBODY && phase[holder] == ending -> printf("Unlock has no more time\n"); over(); check() }
	/* batch.sendRename */
	:: d_step { command == none && someoneWaits && !last && holder != NOBODY && (identity < LIVES || !isRetired(current) || current == settled) ->
#ifndef KEEPS_NAME
		if
		:: current != settled && isRetired(current) -> current = nameOf(holder); undone[current] = 0
		:: else
		fi;
#endif
		unlocked = 0;
		for (i : 0 .. OWNERS-1) { asked[i] = (asked[i] || phase[i] == unlocking) };
		sent = current; send(rename, settled, current, leaseOf(holder));
		printf("the process renames %d to %d\n", from, to); check() }
	/* batch.end, hold.release */
	:: d_step { command == none && holder != NOBODY && phase[holder] == ending ->
		send(release, settled, 0, 0); inTime = (proof > 0) }
#ifdef ASYNC
	/* hold.confirmName, and batch.keepLease: a rename is needed, although no Unlock waits for it */
	:: d_step { command == none && valid && settled != current && !someoneWaits -> unlocked = 1 }
#endif
	/* watchdog: hold.renewNow, after hold.confirmName */
#ifdef RENEWS_UNKNOWN
	:: d_step { command == none && valid && proof < TTL - MARGIN -> send(renew, current, 0, leaseOf(holder));
		printf("the process renews %d\n", from) }
#else
	:: d_step { command == none && valid && proof < TTL - MARGIN && settled == current && !someoneWaits ->
		send(renew, current, 0, leaseOf(holder)); printf("the process renews %d\n", from) }
#endif
	/* hold.check */
	:: d_step { holder != NOBODY && phase[holder] == held && proof == 0 -> printf("owner %d: its lease is over: lost\n", holder); over(); check() }
#ifdef NOTIFIED_FIRST
	:: d_step { doubtFirst != 0 -> giveUp(doubtNow, doubtFirst, doubtThen); doubtFirst = 0; check() }
#endif
	/* undo.Queue: one name, and then the other */
	:: d_step { undoFirst != 0 -> execute(release, undoFirst, 0, 0); printf("Redis: undoes %d: %e\n", undoFirst, result);
		undone[undoFirst] = (undoThen == 0); undoneFirst = (undoThen == 0 -> 0 : undoFirst); undoFirst = 0; check() }
	:: d_step { undoFirst == 0 && undoThen != 0 -> execute(release, undoThen, 0, 0); printf("Redis: undoes %d: %e\n", undoThen, result);
		undone[undoThen] = 1; undone[undoneFirst] = 1; undoneFirst = 0; undoThen = 0; check() }
	od
}

proctype copies(byte n) {
	do
	:: d_step { lateAcquire[n] -> ghost = (ghost || key == 0); remade = (forced && (remade || key == 0)); execute(acquire, n, 0, TTL); printf("Redis: a late acquire for %d: %e\n", n, result); check() }
	:: d_step { lateRenew[n] -> execute(renew, n, 0, TTL); printf("Redis: a late renew for %d: %e\n", n, result); check() }
	:: d_step { lateRelease[n] -> execute(release, n, 0, 0); printf("Redis: a late release or undo of %d: %e\n", n, result); check() }
	:: d_step { lateRename[n] != 0 -> execute(rename, n, lateRename[n], lateLease[n]);
		printf("Redis: a late rename from %d to %d: %e\n", n, lateRename[n], result); check() }
	od
}

proctype another() {
	do
	:: d_step { key == 0 -> key = ANOTHER; setLease(TTL); printf("another owner has the lock\n"); check() }
	:: d_step { key == ANOTHER -> free(); printf("another owner releases it\n") }
#ifdef FORCE
	:: d_step { key != 0 && key != ANOTHER && holder != NOBODY && phase[holder] == held && !forced ->
		forced = 1; free(); printf("the key is deleted\n") }
#endif
	od
}

inline tick(d) {
	proof = (proof > 0 -> proof - 1 : 0);
	age = (command != none && age < TTL -> age + 1 : age);
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
		byte o;
		for (o : 0 .. OWNERS-1) { run owner(o) }
		for (o : 1 .. NAMES) { run copies(o) }
		run process();
		run another();
		run clock()
	}
}
