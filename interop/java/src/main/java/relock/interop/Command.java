package relock.interop;

import java.util.List;

/**
 * One line of input. A command runs on the thread that it names, after those that this
 * thread was given before; other threads go on meanwhile. Times are in milliseconds, and 0
 * where there is none.
 */
record Command(
        long id,
        String thread,
        String op,
        String kind,
        List<Member> members,
        long waitTime,
        long leaseTime,
        Deployment deployment,
        int threads,
        long duration,
        long hold,
        int limit) {

    /** A name on the deployment of a client; all kinds but multi and red have exactly one. */
    record Member(String client, String name) {}

    /** Where and how a client is to connect. */
    record Deployment(
            String client,
            String mode,
            List<String> addresses,
            String master,
            boolean sharded,
            long watchdog) {}
}
