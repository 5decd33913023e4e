package interop

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
)

// rwPair is a read-write lock as both languages have it.
type rwPair struct {
	name        string
	read, write javaLock
	rw          *relock.RWMutex // the side that writes
	ro          reader
}

func (r *redisson) rwPair(locks *relock.Client, name string) rwPair {
	rw := locks.RWMutex(name)
	return rwPair{name: name, read: r.lock("read", name), write: r.lock("write", name), rw: rw, ro: reader{rw}}
}

func readersOf(t *testing.T, m *relock.RWMutex) int {
	t.Helper()
	state, err := m.State(t.Context())
	require.NoError(t, err)
	return len(state.Readers)
}

func TestReadWrite_WriterOfEitherLanguageKeepsTheOtherOut(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		java, locks := d.redisson(t), d.locks(t)
		thread, g := java.thread(), newActor(t)
		for _, name := range namesOf(t) {
			p := java.rwPair(locks, name)
			for _, m := range []goLock{p.rw, p.ro} {
				thread.locks(t, p.write)
				require.False(t, g.tries(t, m), "both hold %s", name)
				coming := g.waits(t, m)
				thread.unlocks(t, p.write)
				require.NoError(t, outcomeOf(t, coming))
				g.unlocks(t, m)
			}
			for _, lock := range []javaLock{p.write, p.read} {
				g.locks(t, p.rw)
				require.False(t, thread.tries(t, lock), "both hold %s", name)
				returned := thread.waits(t, lock)
				g.unlocks(t, p.rw)
				thread.comes(t, returned)
				thread.unlocks(t, lock)
			}
			d.requireFree(t, name)
		}
	})
}

func TestReadWrite_ReadersOfBothLanguagesShareAndKeepWritersOut(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		java, locks := d.redisson(t), d.locks(t)
		thread, writer := java.thread(), java.thread()
		g, goWriter := newActor(t), newActor(t)
		for _, name := range namesOf(t) {
			p := java.rwPair(locks, name)
			thread.locks(t, p.read)
			g.locks(t, p.ro)
			g.locks(t, p.ro)
			thread.locks(t, p.read)
			require.Equal(t, 2, readersOf(t, p.rw))
			require.Equal(t, 2, valueOf[int](t, thread.call(t, "getHoldCount", p.read)))

			none := func() {
				t.Helper()
				require.False(t, writer.tries(t, p.write))
				require.False(t, goWriter.tries(t, p.rw))
			}
			none()
			thread.unlocks(t, p.read)
			thread.unlocks(t, p.read)
			none()
			require.Equal(t, 1, readersOf(t, p.rw), "Java's unlock has taken Go's hold away")
			g.unlocks(t, p.ro)
			none()
			thread.locks(t, p.read)
			g.unlocks(t, p.ro)
			none()
			coming := goWriter.waits(t, p.rw)
			thread.unlocks(t, p.read)
			require.NoError(t, outcomeOf(t, coming))
			goWriter.unlocks(t, p.rw)
			d.requireFree(t, name)
		}
	})
}

func TestReadWrite_WriterThatReadsOnAdmitsReadersOfTheOtherLanguage(t *testing.T) {
	t.Parallel()
	const poll = 300 * time.Millisecond
	onEach(t, func(t *testing.T, d *deployment) {
		java, locks := d.redisson(t), d.locks(t, relock.WithSafetyPoll(poll))
		thread, g := java.thread(), newActor(t)
		p := java.rwPair(locks, redistest.Key(t))

		g.locks(t, p.rw)
		g.locks(t, p.ro)
		returned := thread.waits(t, p.read)
		unlocked := time.Now()
		g.unlocks(t, p.rw)
		require.Less(t, thread.comes(t, returned).ended().Sub(unlocked), overhead, "Java waited for the lease")
		require.False(t, java.thread().tries(t, p.write))
		g.unlocks(t, p.ro)
		thread.unlocks(t, p.read)

		// Java sends no message: Go polls.
		thread.locks(t, p.write)
		thread.locks(t, p.read)
		coming := g.waits(t, p.ro)
		unlocked = time.Now()
		thread.unlocks(t, p.write)
		require.NoError(t, outcomeOf(t, coming))
		require.Less(t, time.Since(unlocked), 2*poll+overhead, "Go did not poll")
		thread.unlocks(t, p.read)
		g.unlocks(t, p.ro)
		d.requireFree(t, p.name)
	})
}

func TestReadWrite_ReleaseInGoWakesJava(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		java, locks, rdb := d.redisson(t), d.locks(t, onlyMessages(relock.Hooks{})...), d.client(t)
		thread, g := java.thread(), newActor(t)
		for i, name := range namesOf(t) {
			p := java.rwPair(locks, name)
			held, wanted := goLock(p.rw), p.read
			if i == 1 {
				held, wanted = p.ro, p.write
			}
			requireQuick(t, func() time.Duration {
				g.locks(t, held)
				returned := thread.begin("lock", wanted)
				eventually(t, "Java listens", func() bool { return d.listening(t, rdb, rwChannelOf(name)) == 1 })
				unlocked := time.Now()
				g.unlocks(t, held)
				locked := thread.comes(t, returned).ended()
				thread.unlocks(t, wanted)
				return locked.Sub(unlocked)
			})
			d.requireFree(t, name)
		}
	})
}

func TestReadWrite_ReleaseInJavaWakesGo(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		waiting := make(chan struct{}, 1)
		hooks := relock.Hooks{Contended: func(relock.Event) { waiting <- struct{}{} }}
		java, locks, rdb := d.redisson(t), d.locks(t, onlyMessages(hooks)...), d.client(t)
		thread, g := java.thread(), newActor(t)
		for i, name := range namesOf(t) {
			p := java.rwPair(locks, name)
			held, wanted := p.write, goLock(p.ro)
			if i == 1 {
				held, wanted = p.read, p.rw
			}
			requireQuick(t, func() time.Duration {
				thread.locks(t, held)
				var locked time.Time
				result := g.begin(func() error {
					err := wanted.Lock(t.Context())
					locked = time.Now()
					return err
				})
				<-waiting
				eventually(t, "Go listens", func() bool { return d.listening(t, rdb, rwChannelOf(name)) == 1 })
				unlocked := thread.call(t, "unlock", held)
				require.NoError(t, unlocked.err())
				require.NoError(t, outcomeOf(t, result))
				g.unlocks(t, wanted)
				return locked.Sub(unlocked.began())
			})
			d.requireFree(t, name)
		}
	})
}

func TestReadWrite_WriterWakesAllReadersOfBothLanguages(t *testing.T) {
	t.Parallel()
	const each = 6
	d := single(t)
	java, locks, rdb := d.redisson(t), d.locks(t, onlyMessages(relock.Hooks{})...), d.client(t)
	p := java.rwPair(locks, redistest.Key(t))
	for _, unlock := range []func() func(){
		func() func() {
			first := newActor(t)
			first.locks(t, p.rw)
			return func() { first.unlocks(t, p.rw) }
		},
		func() func() {
			first := java.thread()
			first.locks(t, p.write)
			return func() { first.unlocks(t, p.write) }
		},
	} {
		release := unlock()
		var inGo []<-chan error
		var inJava []<-chan answer
		var readers []*actor
		var threads []*javaThread
		for range each {
			g, thread := newActor(t), java.thread()
			readers, threads = append(readers, g), append(threads, thread)
			inGo = append(inGo, g.begin(func() error { return p.ro.Lock(t.Context()) }))
			inJava = append(inJava, thread.waits(t, p.read)) // for long enough to be asleep
		}
		eventually(t, "both listen", func() bool { return d.listening(t, rdb, rwChannelOf(p.name)) == 2 })
		release()
		for i := range each { // all of them at once: nobody unlocks yet
			require.NoError(t, outcomeOf(t, inGo[i]))
			threads[i].comes(t, inJava[i])
		}
		require.Equal(t, 2*each, readersOf(t, p.rw))
		for i := range each {
			readers[i].unlocks(t, p.ro)
			threads[i].unlocks(t, p.read)
		}
		d.requireFree(t, p.name)
	}
}

func TestReadWrite_WatchdogsKeepReadersLongerThanTheirTTL(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	d := single(t)
	java := sharedPeer(t).opened(t, d, ttl)
	locks := d.locks(t, relock.WithTTL(ttl))
	thread, writer := java.thread(), java.thread()
	g, goWriter := newActor(t), newActor(t)
	p := java.rwPair(locks, redistest.Key(t))

	thread.locks(t, p.read)
	g.locks(t, p.ro)
	hold := g.context(t, p.ro)
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for end := time.Now().Add(2 * ttl); time.Now().Before(end); <-look.C {
		require.False(t, goWriter.tries(t, p.rw))
		require.False(t, writer.tries(t, p.write))
		require.NoError(t, hold.Err())
		require.Equal(t, 2, readersOf(t, p.rw))
	}
	thread.unlocks(t, p.read)
	g.unlocks(t, p.ro)
	d.requireFree(t, p.name)
}

// Java's watchdog gives the lock its own lease, also when another holder needs a longer one.
func TestReadWrite_GoReaderWithALongTTLOutlivesACrashedJavaReader(t *testing.T) {
	t.Parallel()
	d := single(t)
	doomed := newPeer(t)
	java, locks, rdb := doomed.opened(t, d, crashTTL), d.locks(t, relock.WithTTL(time.Minute)), d.client(t)
	g, writer := newActor(t), newActor(t)
	p := java.rwPair(locks, redistest.Key(t))
	java.thread().locks(t, p.read)
	g.locks(t, p.ro)
	hold := g.context(t, p.ro)
	left := func() time.Duration { return rdb.PTTL(t.Context(), p.name).Val() }
	for range 3 {
		eventually(t, "Go's lease", func() bool { return left() > crashTTL })
		eventually(t, "Java's lease", func() bool { return left() <= crashTTL })
	}
	doomed.die(t)
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for end := time.Now().Add(2 * crashTTL); time.Now().Before(end); <-look.C {
		require.NoError(t, hold.Err())
		require.False(t, writer.tries(t, p.rw))
	}
	require.Greater(t, left(), crashTTL)
	g.unlocks(t, p.ro)
	d.requireFree(t, p.name)
}

func TestReadWrite_LongReadInGoOutlivesAShortOneInJava(t *testing.T) {
	t.Parallel()
	d := single(t)
	java, locks := d.redisson(t), d.locks(t)
	thread, g := java.thread(), newActor(t)
	p := java.rwPair(locks, redistest.Key(t))

	g.locks(t, p.ro)
	thread.locks(t, p.read, leaseTime(10*time.Second))
	require.Greater(t, valueOf[int](t, thread.call(t, "remainTimeToLive", p.read)), 20_000)
	thread.unlocks(t, p.read)
	require.Greater(t, valueOf[int](t, thread.call(t, "remainTimeToLive", p.read)), 20_000)
	require.False(t, thread.tries(t, p.write))
	g.unlocks(t, p.ro)
	d.requireFree(t, p.name)
}

func TestReadWrite_ForceUnlockReachesTheOtherLanguage(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		java, locks := d.redisson(t), d.locks(t, relock.WithTTL(forcedTTL))
		thread, g := java.thread(), newActor(t)
		p := java.rwPair(locks, redistest.Key(t))
		for _, side := range []struct {
			java javaLock
			goes goLock
		}{{p.read, p.ro}, {p.write, p.rw}} {
			g.locks(t, side.goes)
			hold := g.context(t, side.goes)
			require.True(t, valueOf[bool](t, thread.call(t, "forceUnlock", side.java)))
			require.ErrorIs(t, ends(t, hold), relock.ErrLost)
			require.ErrorIs(t, outcomeOf(t, g.begin(side.goes.Unlock)), relock.ErrLost)

			thread.locks(t, side.java)
			forced, err := p.rw.ForceUnlock(t.Context())
			require.NoError(t, err)
			require.True(t, forced)
			require.False(t, valueOf[bool](t, thread.call(t, "isHeldByCurrentThread", side.java)))
			require.ErrorContains(t, thread.call(t, "unlock", side.java).err(), "IllegalMonitorStateException")
			d.requireFree(t, p.name)
		}
	})
}

func TestReadWrite_RWMutexOnTheNameOfAPlainLockIsRefused(t *testing.T) {
	t.Parallel()
	d := single(t)
	java, locks := d.redisson(t), d.locks(t)
	thread, g := java.thread(), newActor(t)
	p := java.rwPair(locks, redistest.Key(t))
	lock := java.lock("plain", p.name)
	thread.locks(t, lock)
	for _, m := range []goLock{p.rw, p.ro} {
		require.ErrorIs(t, outcomeOf(t, g.begin(func() error { return m.Lock(t.Context()) })), relock.ErrInvalidName)
	}
	thread.unlocks(t, lock)
	d.requireFree(t, p.name)
}

// Redisson's readers ignore waiting writers, and come in. Ours stay out.
func TestReadWrite_WaitingGoWriterKeepsOutGoReadersOnly(t *testing.T) {
	t.Parallel()
	d := single(t)
	java, locks := d.redisson(t), d.locks(t)
	first, second := java.thread(), java.thread()
	g, late := newActor(t), newActor(t)
	p := java.rwPair(locks, redistest.Key(t))
	first.locks(t, p.read)
	coming := g.waits(t, p.rw)
	redistest.Eventually(t, "the writer's claim counts", func() bool { // on a busy machine its first request may be late
		reads := late.tries(t, p.ro)
		if reads {
			late.unlocks(t, p.ro)
		}
		return !reads
	})
	require.True(t, second.tries(t, p.read), "Redisson looks by now: say so in docs/java.md")
	second.unlocks(t, p.read)
	first.unlocks(t, p.read)
	require.NoError(t, outcomeOf(t, coming))
	g.unlocks(t, p.rw)
	d.requireFree(t, p.name)
}

func TestReadWrite_CrashInJavaFreesGoWithinTheTTL(t *testing.T) {
	t.Parallel()
	d := single(t)
	for _, kind := range []string{"read", "write"} {
		doomed := newPeer(t)
		java, locks := doomed.opened(t, d, crashTTL), d.locks(t, onlyMessages(relock.Hooks{})...)
		p := java.rwPair(locks, kind+redistest.Key(t))
		java.thread().locks(t, java.lock(kind, p.name))
		g := newActor(t)
		coming := g.waits(t, p.rw)
		crashed := time.Now()
		doomed.die(t)
		require.NoError(t, outcomeOf(t, coming))
		require.Less(t, time.Since(crashed), crashTTL+overhead)
		g.unlocks(t, p.rw)
		d.requireFree(t, p.name)
	}
}

func TestReadWrite_CrashInGoFreesJavaWithinTheTTL(t *testing.T) {
	t.Parallel()
	d := single(t)
	java := d.redisson(t)
	thread := java.thread()
	for _, kind := range []string{"read", "write"} {
		name := kind + redistest.Key(t)
		lock := java.lock("write", name)
		kill := startHolder(t, holderOrder{Addr: d.java.Addresses[0], Name: name, Kind: kind, TTL: crashTTL})
		returned := thread.waits(t, lock)
		crashed := time.Now()
		kill()
		require.Less(t, thread.comes(t, returned).ended().Sub(crashed), crashTTL+overhead)
		thread.unlocks(t, lock)
		d.requireFree(t, name)
	}
}

func TestReadWrite_DeadReaderIsNotKeptAliveByTheOtherLanguage(t *testing.T) {
	t.Parallel()
	d := single(t)
	java, locks := sharedPeer(t).opened(t, d, crashTTL), d.locks(t, relock.WithTTL(crashTTL))
	thread, g, writer := java.thread(), newActor(t), newActor(t)

	p := java.rwPair(locks, redistest.Key(t))
	kill := startHolder(t, holderOrder{Addr: d.java.Addresses[0], Name: p.name, Kind: "read", TTL: crashTTL})
	thread.locks(t, p.read)
	kill()
	eventually(t, "the end of its lease", func() bool { return readersOf(t, p.rw) == 1 })
	thread.unlocks(t, p.read)
	require.True(t, thread.tries(t, p.write), "Go's dead reader is in the way")
	thread.unlocks(t, p.write)

	doomed := newPeer(t)
	dead := doomed.opened(t, d, crashTTL)
	p = java.rwPair(locks, "other"+redistest.Key(t))
	dead.thread().locks(t, dead.lock("read", p.name))
	g.locks(t, p.ro)
	doomed.die(t)
	eventually(t, "the end of its lease", func() bool { return readersOf(t, p.rw) == 1 })
	require.False(t, writer.tries(t, p.rw))
	g.unlocks(t, p.ro)
	require.True(t, writer.tries(t, p.rw), "Java's dead reader is in the way")
	writer.unlocks(t, p.rw)
	d.requireFree(t, p.name)
}
