package guard

// Each calls f with each of all, though it panics with one, or ends the goroutine: a hook of a user may. So no part of
// what is given back stays locked, and renewed, without an owner. Then the panic goes on.
func Each[T any](all []T, f func(T)) {
	if len(all) > 0 {
		defer Each(all[1:], f)
		f(all[0])
	}
}
