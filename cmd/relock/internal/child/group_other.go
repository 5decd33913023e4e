//go:build unix && !linux

package child

// lives is true: this system does not distinguish the processes of a group that have ended.
func lives(int) bool { return true }
