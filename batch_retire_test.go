package relock

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/keys"
)

// A caller that gets the error of an unknown outcome may lock again at once. What undoes the batch must not
// meet that hold.
func TestBatch_NamesAreRetiredBeforeAnUnknownOutcomeIsReported(t *testing.T) {
	for name, ends := range map[string]func(b *batchTrial){
		"Redis has neither name":       func(b *batchTrial) { b.renames[0].answer <- renamed{} },
		"the release was not answered": func(b *batchTrial) { b.end(errMissed) },
		"the client has no more time":  func(b *batchTrial) { b.session.endBackground(errMissed) },
	} {
		t.Run(name, func(t *testing.T) {
			beginBatch(t, func(b *batchTrial) {
				second, third := b.next("second"), b.next("third")
				b.follows(second)
				b.isSent(b.first, second)
				b.follows(third)
				for _, channels := range [][]chan error{b.asked, b.waiting} {
					channels[0] = make(chan error) // so the sender waits until it is received
				}
				b.stop = nil // the rename under way would wait for b.mu
				reported := []<-chan error{b.asked[0], b.waiting[0]}
				current := b.session.identities.Current()
				go ends(b)
				synctest.Wait()
				retired := b.session.identities.Current() != current // all of them have one identity
				for _, answer := range reported {
					require.Error(t, <-answer)
				}
				synctest.Wait()
				require.True(t, retired)
			})
		})
	}
}

// An owner may form a name for its next hold while a batch that has the same name fails, and undoes the name.
func TestBatch_NameOfOneThatFailsIsNotGivenToItsOwnerAgain(t *testing.T) {
	beginBatch(t, func(b *batchTrial) {
		again := &attempt{hold: b.nextAgain(b.first)}
		for round := range 2000 {
			retired := b.session.identities.Current()
			b.settled, b.over = retired.Of(b.target, b.first.owner), false
			b.gate.beginBatch(b.batch)
			formed := make(chan keys.Name)
			var ready atomic.Int32
			together := func() { // no sooner than the other one
				for ready.Add(1); ready.Load() < 2; {
					runtime.Gosched()
				}
			}
			go func() {
				together()
				formed <- again.newName()
			}()
			together()
			b.end(errMissed)
			require.NotSame(t, retired, (<-formed).Identity, "round %d", round)
		}
	})
}
