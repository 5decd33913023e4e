package wake

import (
	"context"
	"maps"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/guard"

	"github.com/relock-go/relock/internal/clock"
)

// Cluster returns on which master a channel lives. *redis.ClusterClient does.
type Cluster interface {
	// MasterForKey answers from a map of the slots, which may be out of date.
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	// ReloadState has the map renewed in the background.
	ReloadState(ctx context.Context)
}

// Shards wake the subscribers of sharded channels (SSUBSCRIBE): what a Hub does
// for all channels, with a hub for each master. They are safe for concurrent use.
//
// A channel is on the hub of its master, or astray: new, or its slot has moved,
// or its link was lost. Channels that are astray are looked up in the map of the
// slots and given to the hub that it names, after a pause in which the map is
// renewed if it was to blame. They are not live meanwhile. Those that are live
// are compared with the map now and then. A hub without channels has no
// connection and no goroutine.
type Shards struct {
	common
	cluster Cluster
	cfg     Config
	ctx     context.Context // of looking up; ends with Close
	cancel  context.CancelFunc
	kick    chan struct{} // holds one: the search has something to look at

	// The fields below are guarded by mu.
	channels  map[string]*channel    // by name, wherever they are
	lost      map[*channel]time.Time // those astray, which are those without a hub: when to look them up
	hubs      map[*redis.Client]*Hub // by master; those that rest are dropped in time
	searching bool                   // the search goroutine exists; false only if channels is empty
	stale     bool                   // the map was wrong
	doubts    int                    // how often to look soon again whether it still is
	auditAt   time.Time              // when to compare it with where the channels are
	backoff   time.Duration
	retryAt   time.Time // what goes astray because of the map is not looked up before
}

// NewShards returns shards that subscribe on the masters of cluster. It starts
// nothing.
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
	s.cancel() // closed is set by now, so a look-up that fails by this is not repeated
	s.end(s.cfg.CloseTimeout)
}

// astray schedules a new look-up, at the given time, for a channel that left its hub. mu
// is held.
func (s *Shards) astray(ch *channel, at time.Time) {
	s.await(ch, at)
	// A map that was wrong about one slot may be wrong about others, whose masters have not said so. So what is
	// live is compared with the map soon, and twice: the first time the map may not be renewed yet.
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

// nudge makes the search look at the state of things.
func (s *Shards) nudge() {
	select {
	case s.kick <- struct{}{}:
	default: // it will look anyway
	}
}

// pause returns when to look up what the map was wrong about: with the others
// of a moment ago, or after a pause that doubles for as long as the map stays
// wrong. mu is held.
func (s *Shards) pause(now time.Time) time.Time {
	if now.Before(s.retryAt) {
		return s.retryAt
	}
	if now.Sub(s.retryAt) > s.cfg.MaxBackoff {
		s.backoff = s.cfg.MinBackoff
	}
	s.retryAt = now.Add(s.backoff/2 + clock.N(s.backoff/2+1))
	s.backoff = min(2*s.backoff, s.cfg.MaxBackoff)
	return s.retryAt
}

// A round is what the search has to do now.
type round struct {
	reload bool       // renew the map
	lost   []*channel // look them up
	found  []*channel // see whether they are where they belong
	next   time.Time  // when to look again if nothing happens
	end    bool       // there are no channels
}

// search finds the hubs of channels for as long as there are any. It does no
// I/O but to load a map that was never loaded.
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
		// The map is asked without mu, because it may have to be loaded. Meanwhile a channel may be closed, or go
		// astray: settle and verify look again.
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
	defer guard.Recover(&err)
	s.cluster.ReloadState(s.ctx)
}

// masterOf returns the master of ch, by the map.
func (s *Shards) masterOf(ch *channel) (master *redis.Client, err error) {
	defer guard.Recover(&err)
	return s.cluster.MasterForKey(s.ctx, ch.name)
}

// look decides what the search does next.
func (s *Shards) look(now time.Time) round {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := round{reload: s.stale, next: s.auditAt}
	// First, because it may forget the last channel; then the search ends.
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

// audit returns the live channels, which are to be compared with the map, and
// schedules the next comparison: soon, if the map was wrong a moment ago. A master
// that has become a replica ends its subscriptions, but accepts new ones: a channel that
// comes back too early, by an old map, would stay there. mu is held.
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

// verify replaces the link of ch if its hub does not belong to its master. Then all channels of the hub are looked
// up again: where one slot has moved, others may have moved, too.
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

// settle gives ch to the hub of its master, if it is still in use.
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

// hubOf returns the hub of a master. It drops the hubs that have rested for so
// long that they need not remember any more when to connect again: that master
// may have left the Cluster. mu is held.
func (s *Shards) hubOf(master *redis.Client) *Hub {
	h := s.hubs[master]
	if h == nil {
		long := time.Now().Add(-s.cfg.MaxBackoff)
		maps.DeleteFunc(s.hubs, func(_ *redis.Client, old *Hub) bool {
			return !old.running && old.retryAt.Before(long)
		})
		// All hubs share mu and closed. So a channel goes from one hub to another in one step, and Close of the
		// shards closes each.
		h = newHub(&s.common, master, s.cfg, &sharded)
		h.shards = s
		s.hubs[master] = h
	}
	return h
}

// elsewhere reports whether, by a refusal, the channel lives on another
// master, or on none now.
func elsewhere(refusal error) bool {
	return redis.HasErrorPrefix(refusal, "MOVED") || redis.HasErrorPrefix(refusal, "CLUSTERDOWN")
}
