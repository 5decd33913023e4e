package relock.interop;

import java.util.concurrent.TimeUnit;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/** What can be done with a lock. */
final class Locks {
    private final Clients clients;

    Locks(Clients clients) {
        this.clients = clients;
    }

    Object run(Command c) throws InterruptedException {
        RLock lock = find(c);
        return switch (c.op()) {
            case "lock" -> lock(lock, c.leaseTime());
            case "tryLock" -> tryLock(lock, c.waitTime(), c.leaseTime());
            case "lockAndGetToken" -> ((RFencedLock) lock).lockAndGetToken();
            case "unlock" -> unlock(lock);
            case "forceUnlock" -> lock.forceUnlock();
            case "getHoldCount" -> lock.getHoldCount();
            case "getToken" -> ((RFencedLock) lock).getToken();
            case "isLocked" -> lock.isLocked();
            case "isHeldByCurrentThread" -> lock.isHeldByCurrentThread();
            case "remainTimeToLive" -> lock.remainTimeToLive();
            default -> throw new IllegalArgumentException("no operation " + c.op());
        };
    }

    private static Object lock(RLock lock, long lease) {
        if (lease > 0) {
            lock.lock(lease, TimeUnit.MILLISECONDS);
        } else {
            lock.lock();
        }
        return null;
    }

    private static boolean tryLock(RLock lock, long wait, long lease) throws InterruptedException {
        if (wait == 0 && lease == 0) {
            return lock.tryLock();
        }
        return lock.tryLock(wait, lease > 0 ? lease : -1, TimeUnit.MILLISECONDS);
    }

    private static Object unlock(RLock lock) {
        lock.unlock();
        return null;
    }

    /** A new handle for each command: all that a lock is, is on Redis and in its client. */
    RLock find(Command c) {
        return switch (c.kind()) {
            case "multi" -> clients.get(c.members().get(0).client()).getMultiLock(members(c));
            case "red" -> redLock(c);
            default -> member(c.kind(), c.members().get(0));
        };
    }

    @SuppressWarnings("deprecation") // still offered, and still used
    private RLock redLock(Command c) {
        return clients.get(c.members().get(0).client()).getRedLock(members(c));
    }

    private RLock[] members(Command c) {
        return c.members().stream().map(m -> member("plain", m)).toArray(RLock[]::new);
    }

    private RLock member(String kind, Command.Member m) {
        RedissonClient client = clients.get(m.client());
        return switch (kind) {
            case "plain" -> client.getLock(m.name());
            case "fenced" -> client.getFencedLock(m.name());
            case "nonReentrant" -> client.getNonReentrantLock(m.name());
            case "spin" -> client.getSpinLock(m.name());
            case "fair" -> client.getFairLock(m.name());
            case "read" -> client.getReadWriteLock(m.name()).readLock();
            case "write" -> client.getReadWriteLock(m.name()).writeLock();
            default -> throw new IllegalArgumentException("no kind " + kind);
        };
    }
}
