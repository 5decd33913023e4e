package random

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRandom_SameSeedDecidesTheSame(t *testing.T) {
	require.Equal(t, New(1, 2, 3).Uint64(), New(1, 2, 3).Uint64())
	for _, other := range []uint64{New(2, 2, 3).Uint64(), New(1, 3, 2).Uint64(), New(1, 2).Uint64(), New(1).Uint64()} {
		require.NotEqual(t, New(1, 2, 3).Uint64(), other)
	}
}

// The seeds of old reports replay only as long as these numbers stay.
func TestRandom_NumbersOfASeedStay(t *testing.T) {
	require.Equal(t, uint64(51859370868680920), New(1, 2, 3).Uint64())
}
