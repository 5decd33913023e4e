package relock

// MultiMutex returns a handle that locks several names together: Lock takes all of them in
// one step or waits without holding any. Names are sorted and doubles dropped, so any two
// handles with the same names are the same lock. It excludes, and is excluded by, every
// Mutex and FairMutex of one of its names. A bad name or option is returned by the first call
// that would use it.
//
// A Lock is one level on each name, and is unlocked by Unlock of a handle with the same
// names. The hold is one: one lease, one watchdog, and the loss of one name is the loss of
// all. An owner that holds some of the names already adds a level to those and acquires the
// rest together; as with any nested locks, owners that nest in different orders can wait
// for each other.
//
// Who waits for several names does not keep others of the process from single ones, but for
// the time in which it collects its turns on all of them: some tens of milliseconds, up to
// 2 s if every name is always in use. It is served then, but may be overtaken.
//
// WithFencing mints one token, above the counters of all the names. State after a failure,
// errors, concurrent use and round trips are those of a Mutex, whatever the number of names;
// an owner that holds some of them takes one more for each of those holds, to lock and to
// unlock, and to step back if it does not get the rest. For each further name Redis works some
// microseconds more in every round trip, renewals too, and does nothing else meanwhile. On a
// Cluster names without a common {tag} are ErrInvalidName.
func (c *Client) MultiMutex(names []string, opts ...MutexOption) *Mutex {
	return c.mutex(c.plain, names, opts)
}
