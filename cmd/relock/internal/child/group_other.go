//go:build unix && !linux

package child

// lives is true: this system does not tell the processes of a group that have ended from the others.
func lives(int) bool { return true }
