package main

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/relock-go/relock"
)

// shop is one pod.
type shop struct {
	locks  *relock.Client
	charge func(ctx context.Context) error // idempotent: after an error the customer tries again
}

func (s *shop) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /carts/{cart}/checkout", s.checkout)
	mux.HandleFunc("PUT /carts/{cart}/address", s.changeAddress)
	return mux
}

// checkout does not wait: a second click is no second order.
func (s *shop) checkout(w http.ResponseWriter, r *http.Request) {
	m := s.locks.Mutex("example-cart:" + r.PathValue("cart"))
	held, err := m.TryLock(r.Context())
	if err == nil && !held {
		http.Error(w, "this cart is being checked out", http.StatusConflict)
		return
	}
	if err == nil {
		err = s.chargeUnder(r.Context(), m)
	}
	answer(w, err)
}

// chargeUnder charges the cart, and unlocks m also after a panic, which net/http recovers.
func (s *shop) chargeUnder(ctx context.Context, m *relock.Mutex) (err error) {
	defer func() { err = errors.Join(err, m.Unlock()) }()
	return s.charge(m.Context(ctx)) // this context also ends when the lock is lost
}

// changeAddress waits for a checkout to end, but for no longer than a person would.
func (s *shop) changeAddress(w http.ResponseWriter, r *http.Request) {
	m := s.locks.Mutex("example-cart:"+r.PathValue("cart"), relock.WithWaitTimeout(10*time.Second))
	answer(w, m.Do(r.Context(), func(context.Context) error {
		return nil // write the address here
	}))
}

func answer(w http.ResponseWriter, err error) {
	switch {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case errors.Is(err, relock.ErrTimeout): // another request holds the lock, or Redis is silent: err says which
		http.Error(w, "this cart is busy", http.StatusConflict)
	default:
		http.Error(w, "try again later", http.StatusServiceUnavailable)
	}
}
