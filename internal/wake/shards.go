package wake

import (
	"context"
	"maps"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/goroutine"
)

// Cluster returns the master of a channel. It is a *redis.ClusterClient; tests have others, whose map is wrong or that panic.
type Cluster interface {
	// MasterForKey answers from a map of the slots, which may be out of date.
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	// ReloadState has the map renewed in the background.
	ReloadState(ctx context.Context)
}

// Shards wake the subscribers of sharded channels (SSUBSCRIBE), with a hub for each master. They are safe for concurrent
// use.
//
// A channel is on the hub of its master, or lost: it is new, or its slot has moved, or its link has failed. Lost channels
// are not live. They are looked up in the map of the slots, and added to the hub of their master. If the map was wrong,
// it is renewed during a pause before that. Live channels are compared with the map from time to time. A hub without
// channels has no connection and no goroutine.
type Shards struct {
	common
	cluster Cluster
	cfg     Config
	ctx     context.Context // of look-ups; ends with Close
	cancel  context.CancelFunc
	kick    chan struct{} // holds one: the search has something to look at

	// The fields below are guarded by mu.
	channels  map[string]*channel    // by name: all of them
	lost      map[*channel]time.Time // the channels without a hub, and when to look them up
	hubs      map[*redis.Client]*Hub // by master; idle ones are dropped after a time
	searching bool                   // the search goroutine exists; false only if channels is empty
	stale     bool                   // the map was wrong
	doubts    int                    // how many audits follow soon, because the map may still be wrong
	auditAt   time.Time              // when to compare the live channels with the map
	backoff   time.Duration
	retryAt   time.Time // channels that are lost because of the map are not looked up before
}

// NewShards returns shards that subscribe on the masters of cluster. It starts nothing.
func NewShards(cluster Cluster, cfg Config) *Shards {
	ctx, cancel := context.WithCancel(context.Background())
	return &Shards{
		cluster:  cluster,
		cfg:      cfg,
		ctx:      ctx,
		cancel:   cancel,
		kick:     make(chan struct{}, 1),
		channels: make(map[string]*channel),
		lost:     make(map[*channel]time.Time),
		hubs:     make(map[*redis.Client]*Hub),
		backoff:  cfg.MinBackoff,
	}
}

// Subscribe is Hub.Subscribe.
func (s *Shards) Subscribe(name string, wake func()) *Subscription {
	return s.SubscribeTo(name, wake, nil)
}

// SubscribeTo is Hub.SubscribeTo.
func (s *Shards) SubscribeTo(name string, wake func(), message func(payload string)) *Subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return &Subscription{common: &s.common}
	}
	ch := s.channels[name]
	if ch == nil {
		ch = &channel{name: name}
		s.channels[name] = ch
		s.await(ch, time.Time{})
	}
	return ch.subscribe(&s.common, wake, message)
}

// Rejoin is Hub.Rejoin.
func (s *Shards) Rejoin(name string, wake func(), message func(payload string)) *Subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ch := s.channels[name]; ch != nil && !s.closed {
		return ch.subscribe(&s.common, wake, message)
	}
	return nil
}

// Uses is Hub.Uses.
func (s *Shards) Uses(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.channels[name] != nil
}

// Suspect is Hub.Suspect, for the connection that the channel is on.
func (s *Shards) Suspect(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.channels[name].suspect(false)
}

// Missed is Hub.Missed, for the connection that the channel is on.
func (s *Shards) Missed(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.channels[name].suspect(true)
}

// Close is Hub.Close.
func (s *Shards) Close() {
	s.mu.Lock()
	s.closed = true
	for _, h := range s.hubs {
		h.nudge()
	}
	s.nudge()
	s.mu.Unlock()
	s.cancel() // closed is set by now, so a look-up that fails because of this is not repeated
	s.end(s.cfg.CloseTimeout)
}

// astray schedules a new look-up, at the given time, for a channel that left its hub. mu
// is held.
func (s *Shards) astray(ch *channel, at time.Time) {
	s.await(ch, at)
	// A map that was wrong about one slot may be wrong about others, without a sign of it. So the live channels are
	// compared with the map soon, and twice, because the first time the map may not be renewed yet.
	s.stale, s.doubts = true, 2
	if soon := time.Now().Add(s.cfg.MaxBackoff / 2); soon.Before(s.auditAt) {
		s.auditAt = soon
	}
}

// await schedules a look-up of ch. mu is held.
func (s *Shards) await(ch *channel, at time.Time) {
	s.lost[ch] = at
	if !s.searching && !s.closed {
		s.searching = true
		s.auditAt = time.Now().Add(s.cfg.PingInterval)
		s.all.Go(s.search)
	}
	s.nudge()
}

// nudge makes the search look.
func (s *Shards) nudge() {
	select {
	case s.kick <- struct{}{}:
	default: // it will look anyway
	}
}

// pause returns when to look up a channel about which the map was wrong: together with other such channels, or after a
// pause that doubles while the map stays wrong. mu is held.
func (s *Shards) pause(now time.Time) time.Time {
	if now.Before(s.retryAt) {
		return s.retryAt
	}
	if now.Sub(s.retryAt) > s.cfg.MaxBackoff {
		s.backoff = s.cfg.MinBackoff
	}
	s.retryAt = now.Add(clock.Jitter(s.backoff))
	s.backoff = min(2*s.backoff, s.cfg.MaxBackoff)
	return s.retryAt
}

// A round is what the search has to do now.
type round struct {
	reload bool       // renew the map
	lost   []*channel // look them up
	found  []*channel // check that they are on the right hub
	next   time.Time  // when to look again if nothing happens
	end    bool       // there are no channels
}

// search finds the hubs of channels, for as long as there are channels. Its only I/O is to load a map that was never
// loaded.
func (s *Shards) search() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		r := s.look(time.Now())
		if r.end {
			return
		}
		if r.reload {
			s.reload()
		}
		// The map is used without mu, because it may have to be loaded. Meanwhile a channel may be closed or lost, so
		// settle and verify check again.
		for _, ch := range r.lost {
			master, err := s.masterOf(ch)
			s.settle(ch, master, err)
		}
		for _, ch := range r.found {
			if master, err := s.masterOf(ch); err == nil {
				s.verify(ch, master)
			}
		}
		if len(r.lost) > 0 {
			continue // not all may have been settled
		}
		timer.Reset(time.Until(r.next))
		select {
		case <-s.kick:
		case <-timer.C:
		}
	}
}

// reload has the map renewed.
func (s *Shards) reload() {
	var err error
	defer goroutine.Recover(&err)
	s.cluster.ReloadState(s.ctx)
}

// masterOf returns the master of ch, by the map.
func (s *Shards) masterOf(ch *channel) (master *redis.Client, err error) {
	defer goroutine.Recover(&err)
	return s.cluster.MasterForKey(s.ctx, ch.name)
}

// look decides what the search does next.
func (s *Shards) look(now time.Time) round {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := round{reload: s.stale, next: s.auditAt}
	// First, because it may remove the last channel, and then the search ends.
	for ch, at := range s.lost {
		switch {
		case len(ch.subs) == 0:
			s.forget(ch)
		case !at.After(now):
			r.lost = append(r.lost, ch)
		case at.Before(r.next):
			r.next = at
		}
	}
	if s.closed || len(s.channels) == 0 {
		clear(s.lost)
		s.searching, s.doubts = false, 0
		return round{end: true}
	}
	s.stale = false
	if !s.auditAt.After(now) {
		r.found, r.reload = s.audit(now), true
		r.next = now
	}
	return r
}

// audit returns the live channels, to be compared with the map, and schedules the next comparison, which comes soon if
// the map was wrong just now. A master that becomes a replica ends its subscriptions, but accepts new ones. So a channel
// that returns to it too early, by an old map, would stay there. mu is held.
func (s *Shards) audit(now time.Time) (found []*channel) {
	for _, ch := range s.channels {
		if ch.state == live {
			found = append(found, ch)
		}
	}
	s.auditAt = now.Add(s.cfg.PingInterval)
	if s.doubts > 0 {
		s.doubts--
		s.auditAt = now.Add(s.cfg.MaxBackoff / 2)
	}
	return found
}

// verify replaces the link of ch if its hub does not belong to its master. Then all channels of the hub are looked up
// again, because other slots may have moved, too.
func (s *Shards) verify(ch *channel, master *redis.Client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := ch.hub; ch.state == live && h != s.hubs[master] {
		h.misplaced = true
		h.nudge()
	}
}

// forget removes all traces of a channel that is on no hub. mu is held.
func (s *Shards) forget(ch *channel) {
	delete(s.lost, ch)
	delete(s.channels, ch.name)
	if len(s.channels) == 0 {
		s.nudge()
	}
}

// settle adds ch to the hub of its master, if ch is still in use.
func (s *Shards) settle(ch *channel, master *redis.Client, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
	case len(ch.subs) == 0:
		s.forget(ch)
	case err != nil:
		s.astray(ch, s.pause(time.Now()))
	default:
		delete(s.lost, ch)
		s.hubOf(master).adopt(ch)
	}
}

// hubOf returns the hub of a master. It drops hubs that have been idle for so long that their retryAt does not matter
// any more, because their masters may have left the Cluster. mu is held.
func (s *Shards) hubOf(master *redis.Client) *Hub {
	h := s.hubs[master]
	if h == nil {
		long := time.Now().Add(-s.cfg.MaxBackoff)
		maps.DeleteFunc(s.hubs, func(_ *redis.Client, old *Hub) bool {
			return !old.running && old.retryAt.Before(long)
		})
		// All hubs share mu and closed. So a channel moves from one hub to another in one step, and Close of the shards
		// closes every hub.
		h = newHub(&s.common, master, s.cfg, &sharded)
		h.shards = s
		s.hubs[master] = h
	}
	return h
}

// elsewhere reports whether a refusal means that the channel belongs to another master, or to none at present.
func elsewhere(refusal error) bool {
	return redis.HasErrorPrefix(refusal, "MOVED") || redis.HasErrorPrefix(refusal, "CLUSTERDOWN")
}
