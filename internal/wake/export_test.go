package wake

// Kept returns of how many channels and masters s keeps anything.
func (s *Shards) Kept() (channels, hubs int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.channels) + len(s.lost), len(s.hubs)
}
