// Command etcd is a server of etcd, one node with its defaults, for the benchmark: etcd DIRECTORY PORT PORT
package main

import (
	"fmt"
	"net/url"
	"os"

	"go.etcd.io/etcd/server/v3/embed"
)

func main() {
	if err := serve(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "etcd:", err)
		os.Exit(1)
	}
}

func serve(dir, clients, peers string) error {
	c := embed.NewConfig()
	c.Dir, c.LogLevel = dir, "error"
	c.ListenClientUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:" + clients}}
	c.ListenPeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:" + peers}}
	c.AdvertiseClientUrls, c.AdvertisePeerUrls = c.ListenClientUrls, c.ListenPeerUrls
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	server, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	return <-server.Err()
}
