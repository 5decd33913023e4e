// Package turns divides work that is too long for one run of the gate over several.
package turns

import "fmt"

// Of returns every n-th of all, from the k-th on, for the turn "k/n". Neighbours are similar, and take about the same time,
// so turns of neighbours would have very different durations.
func Of[T any](all []T, turn string) ([]T, error) {
	var k, n int
	var rest string
	if fields, _ := fmt.Sscanf(turn+" ", "%d/%d%s", &k, &n, &rest); fields != 2 || k < 1 || k > n || n > len(all) {
		return nil, fmt.Errorf("no turn %q: it is k/n with 1 <= k <= n <= %d", turn, len(all))
	}
	var mine []T
	for i := k - 1; i < len(all); i += n {
		mine = append(mine, all[i])
	}
	return mine, nil
}
