// Package stat has the statistics of bench and sim.
package stat

// Jain returns Jain's fairness index: 1 if all got the lock equally often, 1/n if only one of n did.
func Jain(counts []int) float64 {
	sum, squares := 0.0, 0.0
	for _, n := range counts {
		sum += float64(n)
		squares += float64(n) * float64(n)
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(counts)) * squares)
}

// Quantile returns the smallest value that at least the share q of sorted do not exceed.
func Quantile[T any](sorted []T, q float64) T {
	i := int(q * float64(len(sorted)))
	if float64(i) == q*float64(len(sorted)) {
		i--
	}
	return sorted[max(0, min(i, len(sorted)-1))]
}
