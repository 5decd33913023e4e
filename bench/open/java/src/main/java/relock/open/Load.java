package relock.open;

import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.util.concurrent.Executors;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;

/** The loads: what openloop.go does with goroutines, with threads. */
final class Load {
    private static final long FAILED = -2; // of an answer: see order.go

    private final Library library;
    private final Order order;
    private final AtomicInteger served = new AtomicInteger();
    private final AtomicInteger lost = new AtomicInteger();

    Load(Library library, Order order) {
        this.library = library;
        this.order = order;
    }

    /** Starts each arrival when it is due, even if earlier ones still wait. */
    Answer open() throws InterruptedException {
        long[] arrivals = order.arrivals() == null ? new long[0] : order.arrivals();
        long[] got = new long[arrivals.length];
        long[] gave = new long[arrivals.length];
        long collections = collections();
        ThreadPoolExecutor pool = threads(Math.max(1, Math.min(order.workers(), arrivals.length)));
        for (int i = 0; i < arrivals.length; i++) {
            int me = i;
            pauseUntil(order.start() + arrivals[i]);
            pool.execute(() -> once(me, got, gave));
        }
        pool.shutdown();
        pool.awaitTermination(1, TimeUnit.HOURS);
        return new Answer(0, null, 0, got, gave, served.get(), lost.get(), collections() - collections, 0);
    }

    /** All threads run before the first arrival is due: to start one takes longer than many a lock. */
    private static ThreadPoolExecutor threads(int n) {
        ThreadPoolExecutor pool = (ThreadPoolExecutor) Executors.newFixedThreadPool(n);
        pool.prestartAllCoreThreads();
        return pool;
    }

    /** Locks and unlocks in a loop, and counts the pairs that end in time. */
    Answer closed() throws InterruptedException {
        pauseUntil(order.start());
        long end = order.start() + order.duration();
        AtomicInteger next = new AtomicInteger();
        AtomicInteger inTime = new AtomicInteger();
        ThreadPoolExecutor pool = threads(order.workers());
        for (int i = 0; i < order.workers(); i++) {
            pool.execute(() -> {
                long[] got = new long[1];
                while (Worker.now() < end) {
                    lockAndUnlock(next.incrementAndGet(), 0, got, new long[1]);
                    if (got[0] >= 0 && Worker.now() <= end) {
                        inTime.incrementAndGet();
                    }
                }
            });
        }
        pool.shutdown();
        pool.awaitTermination(1, TimeUnit.HOURS);
        return Answer.counted(inTime.get(), lost.get());
    }

    private void once(int i, long[] got, long[] gave) {
        lockAndUnlock(i, i, got, gave);
        if (got[i] >= 0) {
            served.incrementAndGet();
        }
    }

    private void lockAndUnlock(int i, int at, long[] got, long[] gave) {
        got[at] = -1;
        gave[at] = -1;
        try {
            Library.Handle lock = library.handle(order.nameOf(i));
            if (!lock.tryLock(Math.max(0, order.start() + order.duration() - Worker.now()))) {
                return;
            }
            got[at] = Worker.now() - order.start();
            if (order.hold() > 0) {
                TimeUnit.MICROSECONDS.sleep(order.hold());
            }
            gave[at] = Worker.now() - order.start();
            lock.unlock();
        } catch (Exception e) {
            lost.incrementAndGet();
            if (got[at] < 0) {
                got[at] = FAILED;
            }
        }
    }

    private static void pauseUntil(long instant) {
        for (long left = instant - Worker.now(); left > 0; left = instant - Worker.now()) {
            LockSupport.parkNanos(TimeUnit.MICROSECONDS.toNanos(left));
        }
    }

    private static long collections() {
        return ManagementFactory.getGarbageCollectorMXBeans().stream()
                .mapToLong(GarbageCollectorMXBean::getCollectionCount).sum();
    }
}
