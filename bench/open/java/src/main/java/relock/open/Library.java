package relock.open;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** A lock library, as its documentation recommends to use it. */
interface Library {
    Handle handle(String name);

    /** Opened with the first report of a loss; null if the library reports none. */
    CountDownLatch lost();

    /** A lock, for the thread that uses it. */
    interface Handle {
        void lock() throws Exception;

        boolean tryLock(long micros) throws Exception;

        void unlock() throws Exception;
    }

    static Library open(Order o) throws InterruptedException {
        return o.contender().equals("Redisson") ? redisson(o) : curator(o);
    }

    /** One client; the watchdog renews each lock. */
    private static Library redisson(Order o) {
        Config config = new Config();
        if (o.lease() > 0) {
            config.setLockWatchdogTimeout(o.lease() / 1000);
        }
        if (o.sentinels() == null) {
            config.useSingleServer().setAddress("redis://" + o.addr());
        } else {
            config.useSentinelServers().setMasterName(o.master())
                    .addSentinelAddress(o.sentinels().stream().map(a -> "redis://" + a).toArray(String[]::new));
        }
        RedissonClient client = Redisson.create(config);
        return new Library() {
            @Override
            public Handle handle(String name) {
                RLock lock = client.getLock(name);
                return new Handle() {
                    @Override
                    public void lock() {
                        lock.lock();
                    }

                    @Override
                    public boolean tryLock(long micros) throws InterruptedException {
                        return lock.tryLock(micros, TimeUnit.MICROSECONDS);
                    }

                    @Override
                    public void unlock() {
                        lock.unlock();
                    }
                };
            }

            @Override
            public CountDownLatch lost() {
                return null;
            }
        };
    }

    /** One client; a listener of its connection reports that locks may be lost, as the pages of Curator demand. */
    private static Library curator(Order o) throws InterruptedException {
        int session = o.lease() > 0 ? (int) (o.lease() / 1000) : 60_000;
        CuratorFramework client = CuratorFrameworkFactory.newClient(
                o.addr(), session, Math.min(session, 15_000), new ExponentialBackoffRetry(1000, 3));
        CountDownLatch lost = new CountDownLatch(1);
        client.getConnectionStateListenable().addListener((c, state) -> {
            if (state == ConnectionState.SUSPENDED || state == ConnectionState.LOST) {
                lost.countDown();
            }
        });
        client.start();
        client.blockUntilConnected();
        return new Library() {
            @Override
            public Handle handle(String name) {
                InterProcessMutex lock = new InterProcessMutex(client, "/" + name);
                return new Handle() {
                    @Override
                    public void lock() throws Exception {
                        lock.acquire();
                    }

                    @Override
                    public boolean tryLock(long micros) throws Exception {
                        return lock.acquire(micros, TimeUnit.MICROSECONDS);
                    }

                    @Override
                    public void unlock() throws Exception {
                        lock.release();
                    }
                };
            }

            @Override
            public CountDownLatch lost() {
                return lost;
            }
        };
    }
}
