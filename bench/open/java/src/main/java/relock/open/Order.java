package relock.open;

import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import java.util.List;

/** One line of input: see order.go. Times are in microseconds. */
@JsonIgnoreProperties(ignoreUnknown = true)
record Order(
        int id,
        String op,
        String contender,
        String addr,
        List<String> sentinels,
        String master,
        long lease,
        String name,
        long start,
        long[] arrivals,
        int[] names,
        long hold,
        int workers,
        long duration,
        int count,
        boolean keep) {

    String nameOf(int i) {
        return name + ":" + (names == null ? i : names[i % names.length]);
    }
}
