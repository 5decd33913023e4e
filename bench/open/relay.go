package main

import (
	"io"
	"net"
	"sync"
)

// relay passes bytes between clients and a server, of any protocol, until it is cut: then nothing passes in either direction,
// and connections stay open, as if a cable was pulled.
type relay struct {
	addr     string
	listener net.Listener
	running  sync.WaitGroup

	mu    sync.Mutex // guards the rest
	cut   bool
	conns []net.Conn
}

func startRelay(server string) (*relay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &relay{addr: l.Addr().String(), listener: l}
	r.running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			r.serve(client, server)
		}
	})
	return r, nil
}

func (r *relay) serve(client net.Conn, server string) {
	upstream, err := net.Dial("tcp", server)
	if err != nil {
		client.Close()
		return
	}
	r.mu.Lock()
	r.conns = append(r.conns, client, upstream)
	r.mu.Unlock()
	r.running.Go(func() { r.pass(upstream, client) })
	r.running.Go(func() { r.pass(client, upstream) })
}

// pass copies until one end closes. What arrives after the cut is dropped, the end as well.
func (r *relay) pass(to io.WriteCloser, from io.Reader) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		r.mu.Lock()
		cut := r.cut
		r.mu.Unlock()
		if cut && err == nil {
			continue
		}
		if !cut && n > 0 {
			_, werr := to.Write(buffer[:n])
			if err == nil {
				err = werr
			}
		}
		if err != nil {
			if !cut {
				to.Close()
			}
			return
		}
	}
}

func (r *relay) pull() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = true
}

func (r *relay) close() {
	r.listener.Close()
	r.mu.Lock()
	for _, c := range r.conns {
		c.Close()
	}
	r.mu.Unlock()
	r.running.Wait()
}
