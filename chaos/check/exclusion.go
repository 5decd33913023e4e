package check

// I1: no two valid holds of different owners overlap, unless both only read.
//
// A hold claims to be valid from the return of its Lock until the last time at which the library reported it as valid. The
// time that counts is the one before the question: whatever happened to the process later, the hold was valid then. If two
// claims overlap, two answers cannot both have been true, even if processes were slow or stopped. So there is no tolerance
// and no exemption.
//
// A hold that is unlocked before the end of its min hold excludes others until then. The min hold counts from the call of
// its Lock, or later.
func (r *run) exclusion() {
	for name, holds := range r.byName() {
		var open []*hold
		for _, h := range holds {
			kept := open[:0]
			for _, before := range open {
				if max(before.claimed(), before.keptAtLeast()) <= h.returned {
					continue
				}
				kept = append(kept, before)
				if before.excludes(h) && h.claimed() > h.returned {
					r.overlap(name, before, h)
				}
			}
			open = append(kept, h)
		}
	}
}

// overlap judges that h was granted while an older hold was valid.
func (r *run) overlap(name string, before, h *hold) {
	kept := before.keptAtLeast()
	until := min(max(before.claimed(), kept), h.claimed())
	if r.forked(before, name, h.returned, until) {
		r.report.Overlaps++
		return
	}
	if before.claimed() <= h.returned {
		r.breach("I1", name, "%s had its Lock called at %s, unlocked it, and kept it until %s, and %s held it from %s to %s",
			r.of(before), r.at(before.called), r.at(kept), r.of(h), r.at(h.returned), r.at(h.claimed()))
		return
	}
	r.breach("I1", name, "%s held it from %s to %s, and %s from %s to %s",
		r.of(before), r.at(before.returned), r.at(before.claimed()),
		r.of(h), r.at(h.returned), r.at(h.claimed()))
}
