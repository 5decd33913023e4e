package stat

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestJain_TellsEqualFromUnequal(t *testing.T) {
	require.InDelta(t, 1, Jain([]int{7, 7, 7, 7}), 1e-9)
	require.InDelta(t, 0.25, Jain([]int{0, 9, 0, 0}), 1e-9)
	require.Zero(t, Jain([]int{0, 0}))
}

func TestQuantile_IsAMeasuredValue(t *testing.T) {
	sorted := []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for q, want := range map[float64]int{0: 1, 0.1: 1, 0.11: 2, 0.5: 5, 0.51: 6, 0.99: 10, 1: 10} {
		require.Equal(t, want, Quantile(sorted, q), "%v", q)
	}
	require.Equal(t, 4, Quantile([]int{4}, 0.5))
}
