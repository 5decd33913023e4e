package contend

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRequests_AreCountedWhereverTheyAreCut(t *testing.T) {
	stream := "*1\r\n$4\r\nPING\r\n" +
		"*2\r\n$4\r\nECHO\r\n$14\r\n*1\r\n$4\r\nPING\r\n\r\n" + // an argument that looks like a command
		"*3\r\n$3\r\nSET\r\n$12\r\n*$\r\n*1\r\n$4\r\n\r\n$0\r\n\r\n" +
		"*1\r\n$4\r\nPING\r\n"
	for cut := range len(stream) {
		var r requests
		require.Equal(t, int64(4), r.count([]byte(stream[:cut]))+r.count([]byte(stream[cut:])), "at %d", cut)
	}
	var r requests
	n := int64(0)
	for _, b := range []byte(strings.Repeat(stream, 3)) {
		n += r.count([]byte{b})
	}
	require.Equal(t, int64(12), n)
}
