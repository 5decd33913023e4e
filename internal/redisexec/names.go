package redisexec

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"
)

// NamesOf returns a name for each of rdbs: its address, or its number if the address is unknown, as behind Sentinel.
func NamesOf(rdbs []redis.UniversalClient) []string {
	names := make([]string, len(rdbs))
	for i, rdb := range rdbs {
		names[i] = cmp.Or(AddressOf(rdb), fmt.Sprintf("node %d of %d", i+1, len(rdbs)))
	}
	return names
}

// SharedAddress returns an address that two clients have in common, or "". It does not detect several names of one server, or the
// server behind a client of Sentinel.
func SharedAddress(one, other redis.UniversalClient) string {
	for _, addr := range addressesOf(one) {
		if slices.Contains(addressesOf(other), addr) {
			return addr
		}
	}
	return ""
}

func addressesOf(rdb redis.UniversalClient) []string {
	if cluster, is := rdb.(*redis.ClusterClient); is {
		return cluster.Options().Addrs
	}
	if addr := AddressOf(rdb); addr != "" {
		return []string{addr}
	}
	return nil
}
