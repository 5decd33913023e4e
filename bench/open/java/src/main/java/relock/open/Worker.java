package relock.open;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;

/** A worker that uses a library in Java: see order.go. It ends with its input. */
public final class Worker {
    private final ObjectMapper json = new ObjectMapper();
    private final PrintStream output = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private final Map<String, Keeping> kept = new ConcurrentHashMap<>();
    private Library library;

    /** A lock that is held until an unlock, by the thread that has acquired it. */
    private record Keeping(CountDownLatch unlock, BlockingQueue<Answer> unlocked) {}

    private Worker() {}

    public static void main(String[] args) throws IOException, InterruptedException {
        System.setProperty("org.slf4j.simpleLogger.defaultLogLevel", "off");
        new Worker().serve();
        Runtime.getRuntime().halt(0);
    }

    private void serve() throws IOException, InterruptedException {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Order o = json.readValue(line, Order.class);
            if (o.op().equals("open")) {
                library = Library.open(o);
                answer(o, Answer.at(now()));
                continue;
            }
            inThread(() -> perform(o));
        }
    }

    private static void inThread(Runnable work) {
        Thread t = new Thread(work);
        t.setDaemon(true);
        t.start();
    }

    static long now() {
        return ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
    }

    private void perform(Order o) {
        try {
            answer(o, run(o));
        } catch (Exception e) {
            answer(o, Answer.failed(e.toString()));
        }
    }

    private Answer run(Order o) throws Exception {
        switch (o.op()) {
            case "load":
                return new Load(library, o).open();
            case "closed":
                return new Load(library, o).closed();
            case "lock":
                return lock(o);
            case "unlock":
                Keeping k = kept.remove(o.name());
                k.unlock().countDown();
                return k.unlocked().take();
            case "lost":
                if (library.lost() == null) {
                    return Answer.failed("no notice");
                }
                library.lost().await();
                return Answer.at(now());
            case "hold":
                for (int i = 0; i < o.count(); i++) {
                    library.handle(o.name() + ":" + i).lock();
                }
                return Answer.counted(o.count(), 0);
            case "crowd":
                for (int i = 0; i < o.count(); i++) {
                    inThread(() -> waitFor(o.name()));
                }
                return Answer.counted(o.count(), 0);
            case "usage":
                System.gc();
                Runtime r = Runtime.getRuntime();
                return Answer.of(r.totalMemory() - r.freeMemory());
            default:
                throw new IllegalArgumentException("unknown order " + o.op());
        }
    }

    private void waitFor(String name) {
        try {
            library.handle(name).lock();
        } catch (Exception e) {
            // ends with the process
        }
    }

    /** The thread of this order keeps the lock, if it is to be kept, so it answers before it ends. */
    private Answer lock(Order o) throws Exception {
        Library.Handle lock = library.handle(o.name());
        for (boolean held = false; !held; ) {
            try {
                lock.lock();
                held = true;
            } catch (Exception e) { // an application tries again
                Thread.sleep(100);
            }
        }
        Answer got = Answer.at(now());
        if (!o.keep()) {
            try {
                lock.unlock();
            } catch (Exception e) {
                // the next waiter is served late, and that is measured
            }
            return got;
        }
        Keeping k = new Keeping(new CountDownLatch(1), new LinkedBlockingQueue<>());
        kept.put(o.name(), k);
        answer(o, got);
        k.unlock().await();
        try {
            lock.unlock();
            k.unlocked().add(Answer.at(now()));
        } catch (Exception e) {
            k.unlocked().add(Answer.failed(e.toString()));
        }
        return null;
    }

    private synchronized void answer(Order o, Answer a) {
        if (a == null) {
            return;
        }
        try {
            output.println(json.writeValueAsString(a.to(o)));
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }
}
