/* Shared by the models: promises, and time.
 *
 * A promise is an assertion with a name. Without -DONLY=name all are checked. With it, only that one is checked, so that a
 * disabled rule is shown to break its own promise.
 *
 * Time is counted in ticks. A lease of TTL ticks ends at the TTLth tick after the script that set it, or one tick sooner,
 * because the server's clock may be faster, by one tick in a lease. The local deadline is MARGIN ticks earlier than the
 * requested lease. All times are stored as remaining or elapsed ticks, so a run may last for ever, and the model is finite.
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
