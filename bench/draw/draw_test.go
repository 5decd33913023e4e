package draw

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTicks_LinesSpanTheFirstToTheLast(t *testing.T) {
	picture := Lines("What grows & what does not",
		Panel{Title: "a", Along: "processes", Ticks: []float64{10, 100, 1000}, Lines: []Line{
			{Name: "x", Ours: true, Points: [][2]float64{{10, 1}, {1000, 10}}},
			{Name: "y", Points: [][2]float64{{10, 1}, {100, 2}}},
		}},
		Panel{Title: "nothing was measured", Ticks: []float64{1, 2}})
	decoder := xml.NewDecoder(strings.NewReader(picture))
	for {
		_, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
	}
	require.Contains(t, picture, `<polyline class="l relock" stroke-dasharray="" points="64.0,244.0 540.0,`)
	require.Contains(t, picture, ">x 10<")
	require.Contains(t, picture, ">y 2, at 100<")
	require.NotContains(t, picture, "nothing was measured")
}

func TestNumbers_ThousandsAreSetApart(t *testing.T) {
	for want, v := range map[string]float64{"0": 0.4, "999": 999, "1 000": 1000, "12 345 678": 12345678} {
		require.Equal(t, want, Thousands(v))
	}
}

func TestPage_WithoutMarkersIsNotWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "page.md")
	require.NoError(t, os.WriteFile(file, []byte("text"), 0o644))
	require.ErrorContains(t, ReplaceBlock(file, "speed", "new"), "<!-- begin: speed -->")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "text", string(text))
}

func TestPanel_HasGridLines(t *testing.T) {
	require.Equal(t, []float64{100, 200, 500}, grid(100, 914))
	require.Equal(t, []float64{1, 10}, grid(1, 56))
	require.Equal(t, []float64{1, 2, 5}, grid(1, 9.9))
}
