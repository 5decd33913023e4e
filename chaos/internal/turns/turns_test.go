package turns

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTurns_CoverAllOnceAndAreOfOneSize(t *testing.T) {
	all := []int{10, 11, 12, 13, 14, 15, 16}
	for n := 1; n <= len(all); n++ {
		var seen []int
		for k := 1; k <= n; k++ {
			mine, err := Of(all, fmt.Sprintf("%d/%d", k, n))
			require.NoError(t, err)
			require.GreaterOrEqual(t, len(mine), len(all)/n)
			require.LessOrEqual(t, len(mine), len(all)/n+1)
			seen = append(seen, mine...)
		}
		require.ElementsMatch(t, all, seen, "%d turns", n)
	}
}

func TestTurns_OthersAreRefused(t *testing.T) {
	for _, turn := range []string{"", "0/7", "8/7", "1/0", "-1/7", "1/", "/7", "1/8", "1/7/2", "1/7x", "x/7", "12"} {
		_, err := Of(make([]int, 7), turn)
		require.ErrorContains(t, err, strconv.Quote(turn))
	}
}
