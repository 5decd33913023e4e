// Package embedded has servers with real Lua that are accessible in memory only, and clients of them.
package embedded

import (
	"context"
	"fmt"
	"net"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	lua "github.com/yuin/gopher-lua"

	"github.com/relock-go/relock/internal/linktest"
)

// A script has a Lua of its own each time it runs. Most of what that costs is its empty stack, which the
// scripts here do not fill.
func init() { lua.RegistrySize, lua.CallStackSize = 1024, 64 }

// Start starts a server without a listener, and returns a function that serves one end of a connection.
func Start() (m *miniredis.Miniredis, serve func(net.Conn), err error) {
	m = miniredis.NewMiniRedis()
	first, err := m.Dial() // the first Dial starts it
	if err != nil {
		return nil, nil, err
	}
	_ = first.Close()
	return m, m.Server().ServeConn, nil
}

// Addr returns the address of the server with the number. It is an IP address for documentation, because a host name would be
// looked up.
func Addr(number int) string { return fmt.Sprintf("192.0.2.%d:6379", number) }

// Options returns the options of a client that uses a link to a server.
func Options(l *linktest.Link) *redis.Options {
	return &redis.Options{
		Addr:          l.Addr(),
		Dialer:        func(context.Context, string, string) (net.Conn, error) { return l.Dial() },
		DialerRetries: 1, PoolSize: 1000, PipelinePoolSize: 1000,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}
