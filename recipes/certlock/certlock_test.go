package certlock_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/recipes/certlock"
	"github.com/relock-go/relock/relocktest"
)

func locksOn(t *testing.T, rdb redis.UniversalClient, opts ...relock.ClientOption) *relock.Client {
	t.Helper()
	c, err := relock.New(rdb, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// issuer signs what it is asked for, when it is let.
type issuer struct{ asked, let chan struct{} }

func (issuer) IssuerKey() string { return "test" }

func (i issuer) Issue(_ context.Context, csr *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	i.asked <- struct{}{}
	<-i.let
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: csr.DNSNames,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, csr.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &certmagic.IssuedCertificate{Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, nil
}

// newNode returns a certmagic that shares files with others.
func newNode(t *testing.T, files string, i issuer, locks *relock.Client) *certmagic.Config {
	t.Helper()
	var config *certmagic.Config
	cache := certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return config, nil },
		Logger:           zap.NewNop(),
	})
	t.Cleanup(cache.Stop)
	config = certmagic.New(cache, certmagic.Config{
		Storage: certlock.New(&certmagic.FileStorage{Path: files}, locks),
		Issuers: []certmagic.Issuer{i},
		Logger:  zap.NewNop(),
	})
	return config
}

func TestCertificate_IsObtainedByOneOfTwoNodes(t *testing.T) {
	redistest.EachInRealTime(t, func(t *testing.T, b *redistest.Backend) {
		prefix := relock.WithPrefix(redistest.Key(t) + ":")
		waits := make(chan struct{}, 1)
		hooks := relock.WithHooks(relock.Hooks{Contended: func(relock.Event) { waits <- struct{}{} }})
		files, i, done := t.TempDir(), issuer{make(chan struct{}, 2), make(chan struct{})}, make(chan error, 2)
		for range 2 {
			node := newNode(t, files, i, locksOn(t, b.Client(t), prefix, hooks))
			go func() { done <- node.ObtainCertSync(t.Context(), "example.com") }()
		}
		redistest.Receive(t, i.asked)
		redistest.Receive(t, waits)
		i.let <- struct{}{}
		require.NoError(t, redistest.Receive(t, done))
		require.NoError(t, redistest.Receive(t, done))
		require.Empty(t, i.asked, "both have asked for it")
	})
}

func storageOn(locks *relock.Client) *certlock.Storage {
	return certlock.New(&certmagic.FileStorage{}, locks)
}

func TestCertificate_GoroutinesOfANodeExcludeEachOtherAndAnyUnlocks(t *testing.T) {
	s := storageOn(relocktest.New(t))
	require.NoError(t, s.Lock(t.Context(), "a"))
	held, err := s.TryLock(t.Context(), "a")
	require.NoError(t, err)
	require.False(t, held, "it is not reentrant")
	held, err = s.TryLock(t.Context(), "b")
	require.NoError(t, err)
	require.True(t, held)

	next := make(chan error)
	go func() { next <- s.Lock(t.Context(), "a") }()
	unlocked := make(chan error)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	go func() { unlocked <- s.Unlock(ended, "a") }()
	require.NoError(t, redistest.Receive(t, unlocked))
	require.NoError(t, redistest.Receive(t, next))
	require.NoError(t, s.Unlock(t.Context(), "a"))
	require.NoError(t, s.Unlock(t.Context(), "b"))
	require.ErrorIs(t, s.Unlock(t.Context(), "a"), relock.ErrNotHeld)
}

func TestCertificate_UnlockAfterALossLeavesTheNextHold(t *testing.T) {
	locks := relocktest.New(t)
	s := storageOn(locks)
	require.NoError(t, s.Lock(t.Context(), "a"))
	relocktest.Lose(t, locks, "certmagic:a")
	require.NoError(t, s.Lock(t.Context(), "a"), "another goroutine follows")
	require.ErrorIs(t, s.Unlock(t.Context(), "a"), relock.ErrLost)
	held, err := s.TryLock(t.Context(), "a")
	require.NoError(t, err)
	require.False(t, held)
	require.NoError(t, s.Unlock(t.Context(), "a"))
}

func TestCertificate_WaitEndsWithItsContextAndABadNameIsAnError(t *testing.T) {
	locks := relocktest.New(t)
	s := storageOn(locks)
	release := relocktest.HoldElsewhere(t, locks, "certmagic:a")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Lock(ended, "a"), context.Canceled)
	require.ErrorIs(t, s.Unlock(t.Context(), "a"), relock.ErrNotHeld)
	release()
	require.ErrorIs(t, s.Lock(t.Context(), "a{b"), relock.ErrInvalidName)
	require.NoError(t, s.Lock(t.Context(), "a"))
	require.NoError(t, s.Unlock(t.Context(), "a"))
}
