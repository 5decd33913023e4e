package relock.open;

import com.fasterxml.jackson.annotation.JsonInclude;

/** One line of output: see order.go. */
@JsonInclude(JsonInclude.Include.NON_DEFAULT)
record Answer(int id, String err, long at, long[] got, long[] gave, int served, int lost, long gcs, long heap) {
    static Answer at(long at) {
        return new Answer(0, null, at, null, null, 0, 0, 0, 0);
    }

    static Answer failed(String err) {
        return new Answer(0, err, 0, null, null, 0, 0, 0, 0);
    }

    static Answer counted(int served, int lost) {
        return new Answer(0, null, 0, null, null, served, lost, 0, 0);
    }

    static Answer of(long heap) {
        return new Answer(0, null, 0, null, null, 0, 0, 0, heap);
    }

    Answer to(Order o) {
        return new Answer(o.id(), err, at, got, gave, served, lost, gcs, heap);
    }
}
