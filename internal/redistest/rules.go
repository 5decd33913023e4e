package redistest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"
)

// Rule is what a relay does with matching commands. Methods of the relay make rules. A rule applies to one command, unless
// Times or Always is called.
//
// A command goes through the rules in the order in which they were made. After a rule that removes the command or its
// reply (DropReply, LoseReply, HoldBack, HoldBackSilently, ReplyWith), no further rule applies. After others (Delay,
// Block, Before, After) the next rules apply, too.
type Rule struct {
	relay *Relay
	match Match

	// onCommand is called before the command is forwarded, onReply before its reply is;
	// they report whether it may go on. Each rule has one of them.
	onCommand func(*conn, *exchange) bool
	onReply   func(*conn, Command, string) bool
	last      bool // no rule after this one sees the command

	caught   chan struct{} // closed at the first use
	released chan struct{} // closed by Release

	// Guarded by relay.mu.
	limit, taken int // how often it may be used, and how often it was used
	removed      bool

	once, release sync.Once
}

func (r *Relay) addRule(rule *Rule) *Rule {
	rule.relay, rule.limit = r, 1
	rule.caught, rule.released = make(chan struct{}), make(chan struct{})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rules = append(r.rules, rule)
	return rule
}

// Times sets how many commands the rule applies to, in all.
func (r *Rule) Times(n int) *Rule {
	r.relay.mu.Lock()
	defer r.relay.mu.Unlock()
	r.limit = n
	return r
}

// Always makes the rule apply to every command that matches.
func (r *Rule) Always() *Rule { return r.Times(-1) }

// Remove ends the rule for commands that come from now on.
func (r *Rule) Remove() {
	r.relay.mu.Lock()
	defer r.relay.mu.Unlock()
	r.removed = true
}

// Caught is closed when the rule has done its work for the first time: when the reply
// is dropped (so the command is executed), the command held back, delayed or blocked,
// or the hook has returned.
func (r *Rule) Caught() <-chan struct{} { return r.caught }

// Wait waits until Caught, and fails the test if that takes too long.
func (r *Rule) Wait(tb testing.TB) {
	tb.Helper()
	select {
	case <-r.caught:
	case <-time.After(readyTimeout):
		tb.Fatalf("redistest: no command met the rule within %v", readyTimeout)
	}
}

// Release forwards the commands that the rule blocks, and ends the rule. It is for Block.
func (r *Rule) Release() { r.release.Do(func() { close(r.released) }) }

func (r *Rule) fire() { r.once.Do(func() { close(r.caught) }) }

// use reports whether the rule applies to the command, which then counts as one use.
// relay.mu is held.
func (r *Rule) use(command Command) bool {
	if r.removed || r.taken == r.limit || !r.match(command) {
		return false
	}
	r.taken++
	return true
}

// rulesFor returns the rules for the command, and counts their use.
func (r *Relay) rulesFor(command Command) []*Rule {
	r.mu.Lock()
	defer r.mu.Unlock()
	var rules []*Rule
	for _, rule := range r.rules {
		if len(command) > 0 && rule.use(command) {
			rules = append(rules, rule)
			if rule.last {
				break
			}
		}
	}
	return rules
}

// applyRules applies the rules for a command that is about to be forwarded, and reports
// whether it may be.
func (c *conn) applyRules(ex *exchange) bool {
	for _, rule := range c.relay.rulesFor(ex.command) {
		if rule.onReply != nil {
			ex.rules = append(ex.rules, rule)
			continue
		}
		c.flush() // earlier commands must not wait for this one
		if !rule.onCommand(c, ex) {
			return false
		}
	}
	return true
}

// DropReply lets the server execute the command, then discards the reply and cuts the connection: the client sees EOF, and
// the outcome is unknown to it.
func (r *Relay) DropReply(match Match) *Rule {
	return r.addRule(&Rule{match: match, last: true, onReply: func(c *conn, _ Command, _ string) bool {
		c.hangUp()
		return false
	}})
}

// LoseReply lets the server execute the command, then discards its reply and all later ones on that connection, which
// stays open: the client waits until its time-out. Later commands on the connection are executed.
func (r *Relay) LoseReply(match Match) *Rule {
	return r.addRule(&Rule{match: match, last: true, onReply: func(c *conn, _ Command, _ string) bool {
		c.muted.Store(true)
		return false
	}})
}

// Delay forwards the command d later. Later commands on its connection wait behind it. The command is forwarded even if the
// client closes the connection meanwhile, as bytes in a network are.
func (r *Relay) Delay(d time.Duration, match Match) *Rule {
	rule := &Rule{match: match}
	rule.onCommand = func(c *conn, _ *exchange) bool {
		rule.fire()
		return pause(d, c.relay.life.Done())
	}
	return r.addRule(rule)
}

// Block forwards the command only after Release. Otherwise it is like Delay.
func (r *Relay) Block(match Match) *Rule {
	rule := &Rule{match: match}
	rule.onCommand = func(c *conn, _ *exchange) bool {
		rule.fire()
		select {
		case <-rule.released:
			return true
		case <-c.relay.life.Done():
			return false
		}
	}
	return r.addRule(rule)
}

// Before calls the hook before the command is forwarded. The hook may use Redis and the relay, but not the command's own
// connection.
func (r *Relay) Before(match Match, hook func(Command)) *Rule {
	rule := &Rule{match: match}
	rule.onCommand = func(_ *conn, ex *exchange) bool {
		hook(ex.command)
		rule.fire()
		return true
	}
	return r.addRule(rule)
}

// After calls the hook with the raw RESP reply, when the server has executed the command and before the client gets the
// reply. The hook may use Redis as with Before.
func (r *Relay) After(match Match, hook func(command Command, reply string)) *Rule {
	return r.addRule(&Rule{match: match, onReply: func(_ *conn, command Command, reply string) bool {
		hook(command, reply)
		return true
	}})
}

// ReplyWith answers the command with this raw RESP, such as "-LOADING loading\r\n", after the replies to earlier commands.
// The command does not reach the server.
func (r *Relay) ReplyWith(raw string, match Match) *Rule {
	rule := &Rule{match: match, last: true}
	rule.onCommand = func(c *conn, ex *exchange) bool {
		ex.answer = func() { c.reply([]byte(raw)) }
		c.expect(ex)
		rule.fire()
		return false
	}
	return r.addRule(rule)
}

// Held is a rule that holds commands back, to be executed later or never.
type Held struct {
	*Rule
	frames chan []byte // held back and not delivered yet
}

// heldAtMost bounds how many commands one rule holds back. Further ones are lost.
const heldAtMost = 1024

// HoldBack holds the command back, and cuts its connection when earlier commands are answered. Later commands on that
// connection are lost. Deliver sends the command to the server.
func (r *Relay) HoldBack(match Match) *Held {
	return r.hold(match, func(c *conn) { c.hangUp() })
}

// HoldBackSilently is HoldBack, but the connection stays open as a black hole, so the client has to time out.
func (r *Relay) HoldBackSilently(match Match) *Held {
	return r.hold(match, func(c *conn) { c.muted.Store(true) })
}

func (r *Relay) hold(match Match, leave func(*conn)) *Held {
	h := &Held{frames: make(chan []byte, heldAtMost)}
	h.Rule = &Rule{match: match, last: true}
	h.onCommand = func(c *conn, ex *exchange) bool {
		c.swallowCommands.Store(true)
		ex.answer = func() { leave(c) }
		c.expect(ex)
		select {
		case h.frames <- ex.raw:
		default: // the command is lost
		}
		h.fire()
		return false
	}
	r.addRule(h.Rule)
	return h
}

// Times is Rule.Times.
func (h *Held) Times(n int) *Held { h.Rule.Times(n); return h }

// Always is Rule.Always.
func (h *Held) Always() *Held { return h.Times(-1) }

// Deliver sends the oldest command that is held back on a connection of its own, and returns the server's raw RESP reply.
// If no command is held back, it waits for one. ctx bounds the call.
func (h *Held) Deliver(ctx context.Context) (reply string, err error) {
	var frame []byte
	select {
	case frame = <-h.frames:
	case <-ctx.Done():
		return "", fmt.Errorf("redistest: nothing held back to deliver: %w", context.Cause(ctx))
	}
	server, err := dial(ctx, h.relay.upstream)
	if err != nil {
		return "", err
	}
	defer server.Close()
	defer context.AfterFunc(ctx, func() { server.Close() })()
	command := bulks(frame)
	h.relay.teach(command)
	entry := h.relay.record(0, command)
	if _, err := server.Write(frame); err != nil {
		return "", errors.Join(err, context.Cause(ctx))
	}
	answer, err := readFrame(bufio.NewReader(server))
	if err != nil {
		return "", errors.Join(err, context.Cause(ctx))
	}
	h.relay.answered(entry, string(answer))
	return string(answer), nil
}
