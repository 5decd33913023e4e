module github.com/relock-go/relock/sim

go 1.26.0

require (
	github.com/alicebob/miniredis/v2 v2.40.0
	github.com/google/uuid v1.6.0
	github.com/redis/go-redis/v9 v9.23.0
	github.com/relock-go/relock v0.0.0
	github.com/relock-go/relock/bench v0.0.0
	github.com/relock-go/relock/chaos v0.0.0
	github.com/stretchr/testify v1.12.1
	github.com/yuin/gopher-lua v1.1.1
)

require (
	github.com/anishathalye/porcupine v1.3.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/petermattis/goid v0.0.0-20260820044319-269ab09b5261 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace github.com/relock-go/relock => ../

replace github.com/relock-go/relock/chaos => ../chaos

replace github.com/relock-go/relock/bench => ../bench
