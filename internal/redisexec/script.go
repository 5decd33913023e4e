package redisexec

import (
	"crypto/sha1"
	"encoding/hex"
)

// Script is a Lua script and the name Redis knows it by. It never changes, and is told from others by its address:
// each is made once, when the program starts.
type Script struct {
	Source string // in Lua
	Digest any    // its SHA-1 in hex, in a box as go-redis takes it

	// LooksFirst says that it touches every key that it needs before it changes anything: refused
	// because one is not on that node, it may be sent again.
	LooksFirst bool
}

// NewScript returns the script with this source.
func NewScript(source string) *Script {
	sum := sha1.Sum([]byte(source))
	return &Script{Source: source, Digest: hex.EncodeToString(sum[:])}
}
