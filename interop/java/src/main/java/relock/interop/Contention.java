package relock.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/**
 * Threads that lock again and again for a time. Under the lock each checks that it is alone,
 * and does what loses updates if it is not.
 */
final class Contention {
    /** What they did: the holds of each thread, the longest wait for one, and what went wrong. */
    record Report(int[] served, long longestMicros, List<String> errors) {}

    private final RedissonClient client;
    private final RLock lock;
    private final String name;
    private final long end;

    private final int[] served;
    private long longest;
    private final List<String> errors = new ArrayList<>();

    Contention(RedissonClient client, RLock lock, Command c) {
        this.client = client;
        this.lock = lock;
        this.name = c.members().get(0).name();
        this.end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(c.duration());
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
        return new Report(served, TimeUnit.NANOSECONDS.toMicros(longest), errors);
    }

    private void contend(int me) {
        try {
            while (System.nanoTime() < end) {
                long began = System.nanoTime();
                lock.lock();
                long waited = System.nanoTime() - began;
                try {
                    inside();
                } finally {
                    lock.unlock();
                }
                note(me, waited);
            }
        } catch (RuntimeException e) {
            fail(e.toString());
        }
    }

    private void inside() {
        long holders = client.getAtomicLong(name + ":inside").incrementAndGet();
        if (holders != 1) {
            fail(holders + " holders at once");
        }
        String total = client.<String>getBucket(name + ":total").get();
        long next = (total == null ? 0 : Long.parseLong(total)) + 1;
        client.<String>getBucket(name + ":total").set(Long.toString(next));
        client.getAtomicLong(name + ":inside").decrementAndGet();
    }

    private synchronized void note(int me, long waited) {
        served[me]++;
        longest = Math.max(longest, waited);
    }

    private synchronized void fail(String error) {
        errors.add(error);
    }
}
