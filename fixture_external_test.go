package relock_test

import (
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
)

// What a client does if no option says otherwise, and for how long it tries.
const (
	defaultTTL        = 30 * time.Second
	defaultSafetyPoll = 5 * time.Second

	closeTimeout = 5 * time.Second // of Close, behind a Redis that does not answer
)

// chronicle records the events that hooks receive.
type chronicle = locktest.Chronicle[relock.Event, relock.Hooks]
