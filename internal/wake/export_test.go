package wake

// Remembered returns the number of channels, and of masters, for which s has state.
func (s *Shards) Remembered() (channels, hubs int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.channels) + len(s.lost), len(s.hubs)
}
