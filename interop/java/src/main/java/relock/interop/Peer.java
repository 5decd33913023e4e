package relock.interop;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;

/**
 * A process that uses Redisson's locks by commands: a {@link Command} in JSON on each line
 * of its input, an {@link Answer} in JSON on each line of its output. It ends with its input.
 */
public final class Peer {
    private final ObjectMapper json = new ObjectMapper();
    private final PrintStream output = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private final Map<String, ExecutorService> threads = new ConcurrentHashMap<>();
    private final Clients clients = new Clients();
    private final Locks locks = new Locks(clients);

    private Peer() {}

    public static void main(String[] args) throws IOException {
        System.setProperty("org.slf4j.simpleLogger.defaultLogLevel", "error");
        // Says of every RedLock that it is deprecated.
        System.setProperty("org.slf4j.simpleLogger.log.org.redisson.Redisson", "off");
        new Peer().serve();
        Runtime.getRuntime().halt(0);
    }

    private void serve() throws IOException {
        BufferedReader input =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Command c = json.readValue(line, Command.class);
            if (c.op().equals("die")) {
                Runtime.getRuntime().halt(1); // as a crash does: nothing is released
            }
            threads.computeIfAbsent(c.thread(), Peer::newThread)
                    .execute(() -> answer(Answer.of(c.id(), () -> run(c))));
        }
    }

    private static ExecutorService newThread(String name) {
        return Executors.newSingleThreadExecutor(work -> {
            Thread t = new Thread(work, name);
            t.setDaemon(true);
            return t;
        });
    }

    private Object run(Command c) throws InterruptedException {
        switch (c.op()) {
            case "version":
                return Redisson.class.getPackage().getImplementationVersion();
            case "open":
                clients.open(c.deployment());
                return null;
            case "close":
                clients.close(c.deployment());
                return null;
            case "contend":
                return new Contention(clientOf(c), locks.find(c), c).run();
            case "permits":
                return new Permits(clientOf(c), c).run();
            case "deposit":
                Example.deposit(clientOf(c), 1);
                return null;
            default:
                return locks.run(c);
        }
    }

    private RedissonClient clientOf(Command c) {
        return clients.get(c.members().get(0).client());
    }

    private synchronized void answer(Answer a) {
        try {
            output.println(json.writeValueAsString(a));
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }
}
