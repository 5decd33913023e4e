/* A quorum of three nodes. One of them crashes and returns, with its data or without it.
 *
 * Modelled: one owner, and others anywhere else. A command is sent to each node separately. A node executes it and answers,
 * or the copy is given up, and stays in the network for ever. The owner holds when most nodes have granted, and the lease
 * counts from before the first was asked. Without a majority the owner releases what it got. A renewal succeeds when most
 * nodes have lengthened the lease, a release when most no longer have the lock; the rest is undone.
 * The first node crashes once. With its data it returns at any time. Without it, it returns when every lease that it may
 * have granted has ended, which is the operator's rule (appendfsync always, or a later start).
 *
 * Left out, and why that is sound:
 *   - The commands of the others. They take each free node at any time, release it at any time, and hold when they have
 *     most nodes. The owner stands for each of them: see name.pml.
 *   - Repeated copies, hold counts and the like: one node behaves as a single Redis (name.pml).
 *   - Hand-overs: they are a release and an acquisition in one, node by node.
 *   - Leases of full length. Each ends a tick sooner, as by a clock that is ahead. A longer one has no effect that a delayed
 *     copy or another owner, which take a free node at any time, does not have.
 *   - Which node crashes: the nodes are alike.
 *   - With tokens: time and the crash. After a loss of data their order depends on the clocks of the nodes: see
 *     docs/design.md.
 *
 * gate:
 * gate: -DTOKENS=3 -DONLY=tokens_rise
 * hand: -DLIVES=2
 * hand: -DTOKENS=4 -DONLY=tokens_rise
 * off: MINORITY exclusion: one node of three is enough
 * off: NO_RETIRE exclusion: a name is used again although a node has not answered a command under it
 * off: FROM_ANSWER exclusion: the lease is counted from the last answer, not from before the first request
 * off: NO_MARGIN exclusion: the local deadline is as late as the requested lease
 * off: RENEWED_BY_FEW exclusion: a renewal succeeds when one node has answered
 * off: EARLY_START exclusion: a node returns without its data while leases run
 * off: RENEW_ADDS stays_free: a renewal creates the lock on a node that does not have it
 * off: TWINS exclusion: two of the owner's addresses lead to one server, which has two votes
 * off: NO_RAISE tokens_rise -DTOKENS=4: the highest token is not written to a majority
 */
#include "common.pml"

mtype = { idle, held }
mtype = { none, acquire, raise, renew, release, takeBack }
mtype = { unasked, open, yes, no, silent }             /* the state of the command on a node */
mtype = { exclusion, known_loss, stays_free, tokens_rise }

#ifndef LIVES
#define LIVES 1
#endif
#define NODES 3
#define ANOTHER (LIVES+1)
#ifdef TWINS
#define server(x) ((x) == 2 -> 1 : (x))                /* that the owner's address of node x leads to */
#else
#define server(x) (x)
#endif
#ifdef MINORITY
#define MAJORITY 1
#else
#define MAJORITY 2
#endif

/* The nodes. */
byte key[NODES], left[NODES];
mtype = { up, down, wiped }
mtype first = up;                        /* the first node: down with its data, or without */
byte away;                               /* for so long it stays down */
bool crashed;

/* The owner. */
byte life, name, proof, age;             /* life: of which the name is */
mtype phase = idle, command = none, vote[NODES] = unasked;
bool released[LIVES+2];

/* The network: of each name, the nodes at which a copy may come late, as bits. */
byte lateAcquire[LIVES+1], lateRenew[LIVES+1], lateRelease[LIVES+1];

#ifdef TOKENS
byte counter[NODES], minted[NODES], token, last;
#define above(x) (counter[x] < TOKENS -> counter[x] + 1 : TOKENS)
#endif

mtype result = no;
byte i;

#define valid (phase == held && proof > 0)
#define bit(x) (1 << (x))
#define isUp(x) ((x) != 0 || first == up)
#define votes(v) ((vote[0] == v) + (vote[1] == v) + (vote[2] == v))
#define yeses votes(yes)
#define noes votes(no)
#define opens votes(open)
#define keeps(x) (key[x] == name && left[x] >= proof || (x) == 0 && first == wiped && away >= proof)

inline check() {
	promise(exclusion, !valid || (key[0] == ANOTHER) + (key[1] == ANOTHER) + (key[2] == ANOTHER) < MAJORITY);
	promise(known_loss, !valid || keeps(0) + keeps(1) + keeps(2) >= MAJORITY);
	for (i : 1 .. LIVES) {
		promise(stays_free, !released[i] ||
			(key[0] == i && (lateAcquire[i] & 1) == 0) + (key[1] == i && (lateAcquire[i] & 2) == 0) + (key[2] == i && (lateAcquire[i] & 4) == 0) < MAJORITY)
	}
	i = 0; result = no
}

inline free(x) { key[x] = 0; left[x] = 0 }
inline setLease(x) { left[x] = TTL - 1 }

inline execute(c, n, x) {
	result = no;
	if
	:: c == acquire && (key[x] == 0 || key[x] == n) -> key[x] = n; setLease(x); result = yes;
#ifdef TOKENS
		counter[x] = above(x);
		minted[x] = counter[x];
	:: c == raise && key[x] == n -> counter[x] = (counter[x] < token -> token : counter[x]); result = yes
#endif
	:: c == renew && key[x] == n -> setLease(x); result = yes
#ifdef RENEW_ADDS
	:: c == renew && key[x] == 0 -> key[x] = n; setLease(x); result = yes
#endif
	:: (c == release || c == takeBack) && key[x] == n -> free(x); result = yes
	:: else
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

/* The name, which is retired, is released wherever it may stand. */
inline undo() { retire(); lateRelease[name] = 7 }

inline send(c) {
	command = c; age = 0;
	for (i : 0 .. NODES-1) { vote[i] = (c == takeBack && vote[i] != yes -> unasked : open) }
}

/* The copy for node x was not answered. */
inline leaveCopy(x) {
	vote[x] = silent;
	if
	:: command == acquire -> lateAcquire[name] = lateAcquire[name] | bit(x)
	:: command == renew -> lateRenew[name] = lateRenew[name] | bit(x)
	:: command == release || command == takeBack -> lateRelease[name] = lateRelease[name] | bit(x)
	:: else
	fi
}

/* The result is known: the other nodes are not waited for. If an outcome is unknown, the name is retired. */
inline close() {
	for (i : 0 .. NODES-1) {
		if
		:: vote[i] == open -> leaveCopy(i)
		:: else
		fi;
		if
		:: vote[i] == silent -> retire()
		:: else
		fi
	};
	if
	:: command != acquire -> vote[0] = unasked; vote[1] = unasked; vote[2] = unasked
	:: else
	fi
}

inline done() { command = none; age = 0 }
inline over() { phase = idle; proof = 0; name = 0 }

#ifdef FROM_ANSWER
#define proven (TTL - MARGIN)
#else
#define proven (TTL - MARGIN > age -> TTL - MARGIN - age : 0)
#endif

inline holds() {
	proof = proven; vote[0] = unasked; vote[1] = unasked; vote[2] = unasked;
	if
	:: proof == 0 -> undo(); done(); over(); printf("the grant comes too late, and is undone\n")
	:: else -> phase = held; done(); printf("the owner holds the lock as %d, proven for %d ticks\n", name, proof);
#ifdef TOKENS
		promise(tokens_rise, token > last || token == TOKENS);
		last = token;
#endif
	fi
}

proctype owner() {
	do
	/* Quorum.elect */
	:: d_step { phase == idle && command == none && life <= LIVES && life > 0 ->
		name = life; released[name] = 0; send(acquire); printf("the owner asks for the lock as %d\n", name) }
	:: d_step { command == acquire && yeses >= MAJORITY ->
		printf("most have granted\n"); close();
#ifdef TOKENS
		/* Quorum.fence */
		token = 0;
		for (i : 0 .. NODES-1) { token = (vote[i] == yes && minted[i] > token -> minted[i] : token) };
#ifndef NO_RAISE
		command = raise;
		for (i : 0 .. NODES-1) { vote[i] = (vote[i] == yes && minted[i] == token -> yes : open) }
#else
		holds()
#endif
#else
		holds();
#endif
		check() }
	:: d_step { command == acquire && yeses < MAJORITY && yeses + noes >= MAJORITY ->
		/* Quorum.takeBack; the name is undone if the outcome on a node is unknown */
		printf("the owner has too few nodes, and takes them back\n"); close();
		if
		:: vote[0] == silent || vote[1] == silent || vote[2] == silent -> undo()
		:: else
		fi;
		send(takeBack); check() }
	:: d_step { command == acquire && yeses < MAJORITY && yeses + noes < MAJORITY && opens == 0 ->
		printf("too few have answered: undone\n"); undo(); vote[0] = unasked; vote[1] = unasked; vote[2] = unasked; done(); over(); check() }
	:: d_step { command == takeBack && opens == 0 ->
		if
		:: vote[0] == silent || vote[1] == silent || vote[2] == silent -> undo()
		:: else
		fi;
		vote[0] = unasked; vote[1] = unasked; vote[2] = unasked; done(); over(); check() }
#ifdef TOKENS
	:: d_step { command == raise && yeses >= MAJORITY -> close(); holds(); check() }
	:: d_step { command == raise && yeses < MAJORITY && yeses + opens < MAJORITY -> close(); undo(); done(); over(); check() }
#endif
	/* Quorum.Renew */
	:: d_step { valid && command == none && proof < TTL - MARGIN -> send(renew); printf("the owner renews\n") }
#ifdef RENEWED_BY_FEW
	:: d_step { command == renew && yeses >= 1 ->
#else
	:: d_step { command == renew && yeses >= MAJORITY ->
#endif
		printf("the renewal counts\n"); proof = (proven > proof -> proven : proof); close(); done(); check() }
	:: d_step { command == renew && noes > NODES - MAJORITY ->
		printf("most nodes do not have it: lost\n"); close(); undo(); done(); over(); check() }
	:: d_step { command == renew && yeses < MAJORITY && noes <= NODES - MAJORITY && opens == 0 -> close(); done(); check() }
	/* Quorum.Release */
	:: d_step { valid && (command == none || command == renew) ->
		if
		:: command == renew -> close()
		:: else
		fi;
		phase = idle; proof = 0; send(release); printf("the owner unlocks\n"); check() }
	:: d_step { command == release && yeses >= MAJORITY ->
		printf("Unlock returns nil\n"); close(); released[name] = 1; done(); over(); check() }
	:: d_step { command == release && yeses < MAJORITY && opens == 0 ->
		printf("Unlock returns an error\n"); close(); undo(); done(); over(); check() }
	/* hold.check */
	:: d_step { phase == held && proof == 0 -> printf("its lease is over: lost\n");
		if
		:: command != none -> close(); done()
		:: else
		fi;
		undo(); over(); check() }
	od
}

proctype node(byte x) {
	byte n;
	do
	:: d_step { vote[x] == open && isUp(x) -> execute(command, name, server(x)); vote[x] = result;
		printf("node %d: %e for %d: %e\n", x, command, name, result); check() }
	:: d_step { vote[x] == open -> printf("node %d: no answer to %e\n", x, command); leaveCopy(x) }
	:: d_step { isUp(x) && (lateAcquire[1] & bit(x)) -> execute(acquire, 1, server(x)); printf("node %d: a late acquire for 1: %e\n", x, result); check() }
	:: d_step { isUp(x) && (lateRenew[1] & bit(x)) -> execute(renew, 1, server(x)); printf("node %d: a late renew for 1: %e\n", x, result); check() }
	:: d_step { isUp(x) && (lateRelease[1] & bit(x)) -> execute(release, 1, server(x)); printf("node %d: a late release or undo of 1: %e\n", x, result); check() }
#if LIVES > 1
	:: d_step { isUp(x) && (lateAcquire[2] & bit(x)) -> execute(acquire, 2, server(x)); printf("node %d: a late acquire for 2: %e\n", x, result); check() }
	:: d_step { isUp(x) && (lateRenew[2] & bit(x)) -> execute(renew, 2, server(x)); printf("node %d: a late renew for 2: %e\n", x, result); check() }
	:: d_step { isUp(x) && (lateRelease[2] & bit(x)) -> execute(release, 2, server(x)); printf("node %d: a late release or undo of 2: %e\n", x, result); check() }
#endif
	:: d_step { isUp(x) && key[x] == 0 -> key[x] = ANOTHER; setLease(x); printf("node %d: another owner has it\n", x); check() }
	:: d_step { isUp(x) && key[x] == ANOTHER -> free(x); printf("node %d: another owner releases it\n", x) }
	od
}

proctype clock() {
	do
	:: d_step { true -> printf("a tick\n");
		proof = (proof > 0 -> proof - 1 : 0);
		age = (command != none && age < TTL -> age + 1 : age);
		away = (away > 0 -> away - 1 : 0);
		for (i : 0 .. NODES-1) {
			if
			:: left[i] > 1 -> left[i]--
			:: left[i] == 1 -> free(i); printf("node %d: the lease runs out\n", i)
			:: else
			fi
		};
		check() }
	/* the first node crashes */
	:: d_step { !crashed -> crashed = 1; first = down; printf("node 0 crashes\n") }
	:: d_step { !crashed -> crashed = 1; first = wiped; away = TTL; free(0); printf("node 0 crashes, and loses its data\n"); check() }
	:: d_step { first == down -> first = up; printf("node 0 is back, with its data\n") }
#ifdef EARLY_START
	:: d_step { first == wiped -> first = up; away = 0; printf("node 0 is back\n"); check() }
#else
	:: d_step { first == wiped && away == 0 -> first = up; printf("node 0 is back\n") }
#endif
	od
}

init {
	atomic {
		byte x;
		life = 1;
		run owner();
		for (x : 0 .. NODES-1) { run node(x) }
#ifndef TOKENS
		run clock()
#endif
		skip
	}
}
