package relock.interop;

import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.BaseConfig;
import org.redisson.config.BaseMasterSlaveServersConfig;
import org.redisson.config.Config;
import org.redisson.config.ReadMode;
import org.redisson.config.ShardedSubscriptionMode;

/** The Redisson clients of this process, by name. */
final class Clients {
    /** Less than Redisson's 24: many clients are opened, and each for a short time. */
    private static final int IDLE_CONNECTIONS = 4;

    /** More than Redisson's 3 s and 7.5 s: a machine may be busy with other tests. */
    private static final int TIMEOUT_MILLIS = 30_000;

    private final Map<String, RedissonClient> open = new ConcurrentHashMap<>();

    void open(Command.Deployment d) {
        open.put(d.client(), Redisson.create(config(d)));
    }

    void close(Command.Deployment d) {
        open.remove(d.client()).shutdown(0, 2, TimeUnit.SECONDS);
    }

    RedissonClient get(String name) {
        RedissonClient client = open.get(name);
        if (client == null) {
            throw new IllegalArgumentException("no client " + name);
        }
        return client;
    }

    private static Config config(Command.Deployment d) {
        Config config = new Config();
        config.setCodec(StringCodec.INSTANCE);
        if (d.watchdog() > 0) {
            config.setLockWatchdogTimeout(d.watchdog());
        }
        List<String> urls = d.addresses().stream().map(a -> "redis://" + a).toList();
        switch (d.mode()) {
            case "single" -> patient(config.useSingleServer())
                    .setAddress(urls.get(0))
                    .setConnectionMinimumIdleSize(IDLE_CONNECTIONS);
            case "sentinel" -> small(config.useSentinelServers())
                    .setMasterName(d.master())
                    .addSentinelAddress(urls.toArray(String[]::new));
            case "cluster" -> small(config.useClusterServers())
                    .setShardedSubscriptionMode(d.sharded()
                            ? ShardedSubscriptionMode.AUTO : ShardedSubscriptionMode.OFF)
                    .addNodeAddress(urls.toArray(String[]::new));
            default -> throw new IllegalArgumentException("no mode " + d.mode());
        }
        return config;
    }

    private static <T extends BaseConfig<T>> T patient(T servers) {
        return servers.setTimeout(TIMEOUT_MILLIS).setSubscriptionTimeout(TIMEOUT_MILLIS);
    }

    private static <T extends BaseMasterSlaveServersConfig<T>> T small(T servers) {
        return patient(servers)
                .setReadMode(ReadMode.MASTER) // a replica may be behind, and what is read under a lock would be too old
                .setMasterConnectionMinimumIdleSize(IDLE_CONNECTIONS)
                .setSlaveConnectionMinimumIdleSize(1);
    }
}
