package relock.interop;

import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;

/** The Java half of the example in docs/java.md. */
final class Example {
    private Example() {}

    static void deposit(RedissonClient redisson, int amount) {
        RLock lock = redisson.getLock("account:42");
        lock.lock();
        try {
            RBucket<String> account = redisson.getBucket("balance:42", StringCodec.INSTANCE);
            String balance = account.get();
            account.set(String.valueOf((balance == null ? 0 : Integer.parseInt(balance)) + amount));
        } finally {
            lock.unlock();
        }
    }
}
