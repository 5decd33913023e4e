package relock.interop;

import java.time.Instant;
import java.time.temporal.ChronoUnit;

/** One line of output: what came of the command with this id, and from when to when it ran. */
record Answer(long id, Object value, String error, long beganMicros, long endedMicros) {

    interface Work {
        Object run() throws Exception;
    }

    static Answer of(long id, Work work) {
        long began = now();
        try {
            Object value = work.run();
            return new Answer(id, value, null, began, now());
        } catch (Exception | LinkageError e) {
            return new Answer(id, null, e.toString(), began, now());
        }
    }

    private static long now() {
        return ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
    }
}
