package batch_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/identity"
)

// Who hears of the doubt may lock again at once, and what undoes the batch must not meet that hold.
func TestBatch_NamesAreRetiredBeforeAnyoneHearsOfTheDoubt(t *testing.T) {
	for name, ends := range map[string]func(b *trial){
		"Redis knows neither name":     func(b *trial) { b.answers(answer{}) },
		"the release was not answered": func(b *trial) { b.End(errMissed) },
		"the client has no more time":  func(b *trial) { b.end(errMissed) },
	} {
		t.Run(name, func(t *testing.T) {
			begin(t, func(b *trial) {
				second, third := b.newHold("second"), b.newHold("third")
				ofFirst := b.follows(second)
				b.sent(b.first, second)
				ofSecond := b.follows(third)
				heard := 0
				b.env.Retire = func(id *identity.Identity) {
					if !b.isRetired(b.first) { // all of them have one identity
						heard = len(ofFirst) + len(ofSecond)
					}
					b.retire(id)
				}
				ends(b)
				b.settle()
				require.Len(t, ofFirst, 1)
				require.Len(t, ofSecond, 1)
				require.Zero(t, heard, "before a name was retired")
				require.True(t, b.isRetired(b.first) && b.isRetired(second) && b.isRetired(third))
			})
		})
	}
}
