// Web is a shop in two pods. While one pod charges a cart, a second checkout of that cart is refused with 409, and a change
// of its address waits. shop.go has the handlers.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
)

func main() {
	addr := flag.String("redis", "", "`host:port` of a Redis; without it an embedded one")
	flag.Parse()
	if *addr == "" {
		embedded := miniredis.NewMiniRedis()
		if err := embedded.Start(); err != nil {
			log.Fatal(err)
		}
		*addr = embedded.Addr()
	}
	if err := run(*addr); err != nil {
		log.Fatal(err)
	}
}

func run(addr string) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	charging, waiting := make(chan struct{}), make(chan struct{})
	charge := func(ctx context.Context) error { // until a change of the address waits
		close(charging)
		select {
		case <-waiting:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	hooks := relock.Hooks{Contended: func(relock.Event) { close(waiting) }}
	var pods []http.Handler
	for range 2 {
		locks, err := relock.New(rdb, relock.WithHooks(hooks))
		if err != nil {
			return err
		}
		defer locks.Close()
		pods = append(pods, (&shop{locks, charge}).routes())
	}

	first := make(chan string, 1)
	go func() { first <- send(pods[0], "POST", "/carts/7/checkout") }()
	select {
	case <-charging:
	case status := <-first:
		return fmt.Errorf("the checkout did not reach the charge: %s", status)
	}
	fmt.Println("second checkout:      ", send(pods[1], "POST", "/carts/7/checkout"))
	fmt.Println("change of the address:", send(pods[1], "PUT", "/carts/7/address"), "(it waited)")
	fmt.Println("first checkout:       ", <-first)
	return nil
}

// send is a request of a browser.
func send(pod http.Handler, method, path string) (status string) {
	w := httptest.NewRecorder()
	pod.ServeHTTP(w, httptest.NewRequest(method, path, http.NoBody))
	return w.Result().Status
}
