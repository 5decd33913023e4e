/* Shared by the models: what a promise is, and how time goes.
 *
 * A promise is an assertion with a name. Without -DONLY=name all are checked; with it, that one alone,
 * so that a rule which is switched off is seen to break the promise that it is for.
 *
 * Time is counted in ticks. A lease of TTL ticks ends at the TTLth tick after the script that set it, or
 * one tick sooner: the server's clock may be the faster one, by one tick in a lease. The local deadline
 * is MARGIN ticks earlier than the lease that was asked for. All times are kept as what is left or
 * has passed, so a run may last for ever and the model is finite all the same.
 */
#ifndef TTL
#define TTL 3
#endif
#ifdef NO_MARGIN
#define MARGIN 0
#else
#define MARGIN 1
#endif

#ifdef ONLY
#define checks(p) (ONLY == p)
#else
#define checks(p) true
#endif

#define promise(p, ok) \
	if \
	:: checks(p) && !(ok) -> printf("BROKEN: %e\n", p); assert(false) \
	:: else \
	fi
