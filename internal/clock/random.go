package clock

import "math/rand/v2"

// Random is the source of all random times. A simulation replaces it.
var Random = rand.Int64N

// N returns a random number below n.
func N[T ~int64](n T) T { return T(Random(int64(n))) }
