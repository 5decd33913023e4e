package relock.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RedissonClient;

/** Threads that acquire a permit of a semaphore again and again for a time, and hold it. */
final class Permits {
    /** The permits of each thread, the longest wait of one, and how many permits were in use at once. */
    record Report(int[] served, long longestMicros, int most) {}

    private final RPermitExpirableSemaphore semaphore;
    private final long lease; // milliseconds
    private final long hold; // milliseconds
    private final long end;

    private final int[] served;
    private long longest;
    private int inUse;
    private int most;

    Permits(RedissonClient client, Command c) {
        semaphore = client.getPermitExpirableSemaphore(c.members().get(0).name());
        semaphore.trySetPermits(c.limit());
        lease = c.leaseTime();
        hold = c.hold();
        end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(c.duration());
        served = new int[c.threads()];
    }

    Report run() throws InterruptedException {
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < served.length; i++) {
            int me = i;
            Thread t = new Thread(() -> use(me), "user-" + i);
            t.start();
            threads.add(t);
        }
        for (Thread t : threads) {
            t.join();
        }
        semaphore.delete();
        return new Report(served, TimeUnit.NANOSECONDS.toMicros(longest), most);
    }

    private void use(int me) {
        try {
            while (System.nanoTime() < end) {
                long began = System.nanoTime();
                String permit = semaphore.acquire(lease, TimeUnit.MILLISECONDS);
                begin(me, System.nanoTime() - began);
                Thread.sleep(hold);
                end();
                semaphore.release(permit);
            }
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    private synchronized void begin(int me, long waited) {
        served[me]++;
        longest = Math.max(longest, waited);
        inUse++;
        most = Math.max(most, inUse);
    }

    private synchronized void end() {
        inUse--;
    }
}
