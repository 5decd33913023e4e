package clock

import "math/rand/v2"

// Random is where all that is random in times comes from. A simulation puts in another source.
var Random = rand.Int64N

// N returns a random number below n.
func N[T ~int64](n T) T { return T(Random(int64(n))) }
