package protocol

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redisexec"
)

// Renewals of different holds that are due together are sent as one command, a bundle. This saves Redis time, because to
// receive and answer a command costs more than a renewal in it.
//
// lease.RenewalDue makes them due together. It never delays a renewal. It brings a renewal forward, by up to a tenth of
// the interval, to the nearest of ten points in time that all holds of the process with this interval share. From its
// second renewal on, a hold is at such a point already.
//
// A renewal is in one of these states:
//
//	alone       No similar renewal is in flight, or there is no time to wait. The renewal is sent at once, as if there
//	            were no bundles.
//	gathering   The renewal waits for others, until its bundle is full, every similar command in flight has ended, or
//	            companyTime has passed.
//	sent        The bundle is in flight.
//	answered    The answer contains whether the hold is renewed or lost.
//	refused     Redis answered the bundle with an error, perhaps because of one key: the user may not use it, or a Cluster
//	            is moving it. The renewal is sent again, alone, at once.
//	failed      The bundle was not answered, or not sent. The renewal is sent again, alone, at once.
//	left        The hold, or its lease, or, on a quorum, the patience has ended. The renewal does not wait for the bundle.
//	            When all have left, the bundle is abandoned.
//
// Why that is safe:
//
//   - The script judges each hold by itself: a hold is lost only by the state of its own keys.
//   - The lease of every member counts from a time before the bundle was sent.
//   - A delayed or repeated bundle creates no key and shortens no lease. It could only extend a later hold with the same
//     name. So the outcome of a member without an answer is unknown, as after any command, and its name is retired. These
//     are the members of a bundle that is not answered or fails half-way, and members that leave after it was sent.
//   - A member has the slot of its hold, and frees it when it leaves. So an Unlock does not wait for the bundle.
//
// After a bundle was refused or failed, all renewals are sent alone for bundlePause, because some proxies reject commands
// with several keys.

const (
	bundleKeys  = 100 // at most: Redis does nothing else meanwhile, for some hundred microseconds
	companyTime = 5 * time.Millisecond
	bundlePause = time.Minute
)

// renewals sends the renewals of the holds of one protocol. A command is sent by a caller that finds no command in flight, by the
// caller that fills a bundle, by a timer, or at the end of another command.
type renewals struct {
	exec    *redisexec.Executor
	alone   renewsOne
	many    renewsMany
	oneSlot bool          // any keys can be in one command
	company time.Duration // companyTime

	mu       sync.Mutex
	lanes    map[alike]*lane // those with a command in flight
	apartEnd clock.Instant   // until then no bundle is sent
}

// renewsOne and renewsMany are the commands: see Plain.renewAlone and Plain.renewMany.
type (
	renewsOne  func(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, lease time.Duration) (bool, redisexec.Outcome)
	renewsMany func(ctx context.Context, e redisexec.CallOptions, keys, fields []any, lease time.Duration) (lost []int, out redisexec.Outcome)
)

// alike are the properties that the renewals in one command share, because the script takes one lease, and one number of
// keys.
type alike struct {
	tag   string // of the keys, unless any keys can be in one command
	keys  int    // of each hold
	lease time.Duration
}

// lane has the renewals that are alike. renewals.mu guards it. It is made for the first of them, and removed when no
// command is in flight.
type lane struct {
	alike
	underWay int     // commands: never 0 while there is a next
	next     *bundle // gathers; nil if none waits
}

// bundle has the renewals of one command.
type bundle struct {
	lane  *lane
	flush *time.Timer // sends it if nothing else does

	// These are guarded by renewals.mu. members grows while the bundle gathers, and shrinks at any time.
	members []*member // that have not left
	stop    func()    // abandons the command; nil before it is sent

	// done is closed when the fields below are written, which is once.
	done chan struct{}
	lost []int // positions
	out  redisexec.Outcome
	each bool // it was not sent, and every member is to go alone
}

// member is a renewal in a bundle.
type member struct {
	target   *keys.Set
	field    string
	options  redisexec.CallOptions
	bundle   *bundle
	position int // in the command, from 1; written by send, read after done is closed
}

// BundlePatience returns for how long a bundle is waited for whose renewals are waited for as long as patience. Until then its
// members are notified that it was not answered; after that each is sent alone, which makes many commands of one. Who
// cannot wait for so long must not be in a bundle: all copies of a bundle are on one connection, which may be dead.
func BundlePatience(patience, lease time.Duration) time.Duration {
	return min(4*patience, max(patience, lease/4))
}

func newRenewals(exec *redisexec.Executor, alone renewsOne, many renewsMany) *renewals {
	return &renewals{exec: exec, alone: alone, many: many, oneSlot: exec.OneNode(), company: companyTime, lanes: make(map[alike]*lane)}
}

// renew is a Renew that may share a command. It waits no longer than that.
func (r *renewals) renew(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, lease time.Duration) (bool, redisexec.Outcome) {
	m := &member{target: t, field: field, options: e}
	r.mu.Lock()
	l := r.lane(t, lease)
	// The first does not wait: it may be the only one. Those that come while it is under way gather. One with little
	// patience would spend too much of it on waiting for company.
	if l.underWay == 0 || e.Patience < 10*companyTime {
		l.underWay++
		r.mu.Unlock()
		defer r.answered(l)
		return r.alone(ctx, e, t, field, lease)
	}
	r.join(l, m)
	r.mu.Unlock()
	if !r.await(ctx, m) {
		return r.leave(ctx, m)
	}
	b := m.bundle
	refused := b.each || b.out.Permanent || redisexec.Replied(b.out.Err)
	switch {
	case !b.each && b.out.Err == nil:
		// mutant: renew-many-ignores-loss/1
		return !slices.Contains(b.lost, m.position), b.out
	case !refused && e.Attempts == 1:
		return false, b.out
	case !refused && e.Unanswered != nil:
		e.Unanswered(b.out.Err)
	}
	ours, out := r.alone(ctx, e, t, field, lease)
	// The answer to this command does not cover a bundle that failed half-way, or was not answered.
	out.Ambiguous = out.Ambiguous || b.out.Ambiguous
	return ours, out
}

// lane returns the lane of t's renewals. If they are to go alone it is one of their own. mu is held.
func (r *renewals) lane(t *keys.Set, lease time.Duration) *lane {
	like := alike{keys: len(t.Keys), lease: lease}
	if !r.oneSlot {
		like.tag = keys.HashTag(t.Keys[0])
	}
	// A lane that no other renewal finds: nothing is under way in it, so its renewal goes alone.
	if r.apart() || 2*like.keys > bundleKeys {
		return &lane{alike: like}
	}
	if r.lanes[like] == nil {
		r.lanes[like] = &lane{alike: like}
	}
	return r.lanes[like]
}

// apart reports whether no bundle is to be sent now. mu is held.
func (r *renewals) apart() bool { return r.exec.Now().Until(r.apartEnd) > 0 }

// join adds m to the bundle that l gathers, and sends it when it is full. mu is held.
func (r *renewals) join(l *lane, m *member) {
	b := l.next
	if b == nil {
		b = &bundle{lane: l, done: make(chan struct{})}
		b.flush = time.AfterFunc(r.company, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if l.next == b { // else it was sent, or all have left it, while the timer waited for mu
				r.send(b)
			}
		})
		l.next = b
	}
	m.bundle = b
	b.members = append(b.members, m)
	if (len(b.members)+1)*l.keys > bundleKeys { // one more would not fit: why wait?
		r.send(b)
	}
}

// await waits for m's bundle, and notifies m's hold when that takes longer than one renewal would. false: ctx ended
// first, or the patience of a renewal that is to be sent once.
func (r *renewals) await(ctx context.Context, m *member) bool {
	patience := time.NewTimer(m.options.Patience)
	defer patience.Stop()
	for {
		select {
		case <-m.bundle.done:
			return true
		case <-patience.C: // once
			if m.options.Attempts == 1 {
				return false
			}
			if report := m.options.Unanswered; report != nil {
				report(lockerr.NoAnswerWithin(m.options.Patience))
			}
		case <-ctx.Done():
			return false
		}
	}
}

// leave removes m from its bundle, and returns the outcome of its renewal.
func (r *renewals) leave(ctx context.Context, m *member) (bool, redisexec.Outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := m.bundle
	b.members = slices.DeleteFunc(b.members, func(other *member) bool { return other == m })
	// Before the bundle was sent, nothing of it can be executed. After that the outcome is unknown, even if an answer has
	// just arrived: an unnecessary retirement costs no more than an identity.
	out := redisexec.Outcome{Ambiguous: b.stop != nil}
	switch {
	case len(b.members) > 0:
	case out.Ambiguous: // no one waits any more; to settle this is no failure
		b.stop()
	case b.lane.next == b:
		b.lane.next = nil
		b.flush.Stop()
	}
	if ctx.Err() != nil {
		return false, out.Abandoned(ctx)
	}
	out.Err = lockerr.NoAnswerWithin(m.options.Patience)
	return false, out
}

// send sends b, which gathers. mu is held.
func (r *renewals) send(b *bundle) {
	b.lane.next = nil
	b.flush.Stop()
	if r.apart() { // another bundle has failed since this one began to gather
		b.each = true
		close(b.done)
		return
	}
	var keys, fields []any
	e := redisexec.CallOptions{Attempts: 1}
	for i, m := range b.members {
		m.position = i + 1
		keys, fields = append(keys, m.target.Locks()...), append(fields, m.field)
		e.Patience = max(e.Patience, m.options.Patience)
	}
	e.Patience = BundlePatience(e.Patience, b.lane.lease)
	// Not the context of a member: one that leaves must not end the renewal of the others.
	ctx, stop := context.WithCancel(context.Background())
	b.stop = stop
	b.lane.underWay++
	r.exec.Go(func() {
		defer stop()
		b.lost, b.out = r.many(ctx, e, keys, fields, b.lane.lease)
		r.settle(ctx, b)
		r.answered(b.lane)
	})
}

// settle notifies the members of b of its outcome. If it was not answered, or refused, which may be due to one key
// of many, each member is sent alone.
func (r *renewals) settle(ctx context.Context, b *bundle) {
	if b.out.Err != nil && ctx.Err() == nil {
		r.mu.Lock()
		r.apartEnd = r.exec.Now().After(bundlePause)
		r.mu.Unlock()
	}
	close(b.done)
}

// answered ends a command in l, whether it was answered or not. After the last, what has gathered goes.
func (r *renewals) answered(l *lane) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.underWay--; l.underWay > 0 {
		return
	}
	if l.next != nil {
		r.send(l.next)
	}
	// Not if the bundle was sent just now. And another lane may be in the map by this one's key, if this one was made
	// for a renewal that was to go alone.
	if l.underWay == 0 && r.lanes[l.alike] == l {
		delete(r.lanes, l.alike)
	}
}
