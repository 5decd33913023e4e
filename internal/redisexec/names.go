package redisexec

import (
	"fmt"

	"github.com/redis/go-redis/v9"
)

// NamesOf returns what people know each of rdbs by.
func NamesOf(rdbs []redis.UniversalClient) []string {
	names := make([]string, len(rdbs))
	for i := range rdbs {
		names[i] = nameOf(rdbs, i)
	}
	return names
}

// nameOf returns what people know the ith of rdbs by: its address, or its number if that is not
// known, as behind Sentinel, or both if several have one address, as two databases of one server.
func nameOf(rdbs []redis.UniversalClient, i int) string {
	number := fmt.Sprintf("number %d of %d", i+1, len(rdbs))
	addr := AddressOf(rdbs[i])
	if addr == "" {
		return number
	}
	for j, other := range rdbs {
		if j != i && AddressOf(other) == addr {
			return fmt.Sprintf("%s (%s)", addr, number)
		}
	}
	return addr
}
