package interop

import (
	"context"
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/pagetest"
	"github.com/relock-go/relock/internal/redistest"
)

// deposit is the Go half of the example in docs/java.md.
func deposit(ctx context.Context, locks *relock.Client, rdb redis.UniversalClient, amount int) error {
	return locks.Mutex("account:42").Do(ctx, func(ctx context.Context) error {
		balance, err := rdb.Get(ctx, "balance:42").Int()
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		return rdb.Set(ctx, "balance:42", balance+amount, 0).Err()
	})
}

func TestDocs_ExampleLosesNoDepositOfEitherLanguage(t *testing.T) {
	const depositors, deposits = 4, 25
	d := deploymentOn(redistest.NewServer(t)) // its names are fixed
	java, locks, rdb := d.redisson(t), d.locks(t), d.client(t)

	var inGo []<-chan error
	var inJava []<-chan answer
	for range depositors {
		g, thread := newActor(t), java.thread()
		for range deposits {
			inJava = append(inJava, thread.begin("deposit", java.lock("plain", "account:42")))
		}
		inGo = append(inGo, g.begin(func() error {
			for range deposits {
				if err := deposit(t.Context(), locks, rdb, 1); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	for _, result := range inGo {
		require.NoError(t, outcomeOf(t, result))
	}
	for _, result := range inJava {
		require.NoError(t, java.peer.receive(t, result, soonEnough).err())
	}
	balance, err := rdb.Get(t.Context(), "balance:42").Int()
	require.NoError(t, err)
	require.Equal(t, 2*depositors*deposits, balance)
	d.requireFree(t, "account:42")
}

// sharing is the page about Java.
const sharing = "../docs/java.md"

func TestDocs_ExampleIsTheOneTested(t *testing.T) {
	pagetest.RequireCode(t, sharing, "go", "readme_test.go")
	pagetest.RequireCode(t, sharing, "java", "java/src/main/java/relock/interop/Example.java")
}

func TestDocs_NameTheTestedVersionOfRedisson(t *testing.T) {
	version := valueOf[string](t, sharedPeer(t).call(t, command{Thread: "main", Op: "version"}))
	require.Contains(t, pagetest.Read(t, sharing), "Redisson "+version)
}
