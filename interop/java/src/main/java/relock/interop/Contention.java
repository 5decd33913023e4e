package relock.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/**
 * Threads that lock again and again for a time. Under the lock each checks that it is alone,
 * and does what loses updates if it is not. The token of a fenced lock has to be higher than
 * that of the holder before. Of a read-write lock, which is written to in every fourth turn,
 * a reader checks that nobody writes. With a time to hold, they do nothing but hold.
 */
final class Contention {
    /**
     * What they did: the holds of each thread, how many of all holds were no reader's, the
     * longest wait of one, the longest time that none of them got the lock, and what went wrong.
     */
    record Report(int[] served, int written, long longestMicros, long pauseMicros, List<String> errors) {}

    private final RedissonClient client;
    private final RLock lock;
    private final RLock readLock; // null if the lock has one side
    private final String name;
    private final long end;
    private final long hold; // milliseconds; 0: for as long as the checks take

    private final int[] served;
    private int written;
    private long longest;
    private long pause;
    private long last = System.nanoTime();
    private final List<String> errors = new ArrayList<>();

    Contention(RedissonClient client, RLock lock, Command c) {
        this.client = client;
        this.lock = lock;
        this.name = c.members().get(0).name();
        this.readLock = c.kind().equals("write") ? client.getReadWriteLock(name).readLock() : null;
        this.end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(c.duration());
        this.hold = c.hold();
        this.served = new int[c.threads()];
    }

    Report run() throws InterruptedException {
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < served.length; i++) {
            int me = i;
            Thread t = new Thread(() -> contend(me), "contender-" + i);
            t.start();
            threads.add(t);
        }
        for (Thread t : threads) {
            t.join();
        }
        return new Report(served, written, micros(longest), micros(pause), errors);
    }

    private void contend(int me) {
        try {
            for (int turn = me; System.nanoTime() < end; turn++) {
                long began = System.nanoTime();
                if (readLock != null && turn % 4 != 0) {
                    read(me, began);
                    continue;
                }
                long token = lock();
                long waited = System.nanoTime() - began;
                try {
                    if (hold > 0) {
                        Thread.sleep(hold);
                    } else {
                        inside(token);
                    }
                } finally {
                    lock.unlock();
                }
                note(me, waited, 1);
            }
        } catch (RuntimeException | InterruptedException e) {
            fail(e.toString());
        }
    }

    private void read(int me, long began) {
        readLock.lock();
        long waited = System.nanoTime() - began;
        try {
            long writers = client.getAtomicLong(name + ":inside").get();
            if (writers != 0) {
                fail(writers + " writers beside a reader");
            }
        } finally {
            readLock.unlock();
        }
        note(me, waited, 0);
    }

    /** Returns the fencing token, 0 if the lock has none. */
    private long lock() {
        if (lock instanceof RFencedLock fenced) {
            return fenced.lockAndGetToken();
        }
        lock.lock();
        return 0;
    }

    private void inside(long token) {
        long holders = client.getAtomicLong(name + ":inside").incrementAndGet();
        if (holders != 1) {
            fail(holders + " holders at once");
        }
        set(":total", get(":total") + 1);
        if (token > 0) {
            long last = get(":token");
            if (token <= last) {
                fail("token " + token + " after " + last);
            }
            set(":token", token);
        }
        client.getAtomicLong(name + ":inside").decrementAndGet();
    }

    private long get(String counter) {
        String value = client.<String>getBucket(name + counter).get();
        return value == null ? 0 : Long.parseLong(value);
    }

    private void set(String counter, long value) {
        client.<String>getBucket(name + counter).set(Long.toString(value));
    }

    private static long micros(long nanos) {
        return TimeUnit.NANOSECONDS.toMicros(nanos);
    }

    private synchronized void note(int me, long waited, int writes) {
        long now = System.nanoTime();
        served[me]++;
        written += writes;
        longest = Math.max(longest, waited);
        pause = Math.max(pause, now - last);
        last = now;
    }

    private synchronized void fail(String error) {
        errors.add(error);
    }
}
