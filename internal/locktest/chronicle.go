package locktest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode"

	"github.com/relock-go/relock/internal/redistest"
)

// A Chronicle records the events of hooks. E is relock.Event, H relock.Hooks.
type Chronicle[E, H any] struct {
	mu     sync.Mutex
	events []Chronicled[E]
}

// Chronicled is an event with the name of its hook: "renew failed" for RenewFailed.
type Chronicled[E any] struct {
	Hook  string
	Event E
}

// Hooks returns all hooks. Each of them records its events.
func (r *Chronicle[E, H]) Hooks() (hooks H) {
	v := reflect.ValueOf(&hooks).Elem()
	for field, value := range v.Fields() {
		if _, is := value.Interface().(func(E)); is {
			hook := wordsOf(field.Name)
			value.Set(reflect.ValueOf(func(e E) {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.events = append(r.events, Chronicled[E]{hook, e})
			}))
		}
	}
	return hooks
}

func wordsOf(name string) string {
	var text strings.Builder
	for i, c := range name {
		if i > 0 && unicode.IsUpper(c) {
			text.WriteByte(' ')
		}
		text.WriteRune(unicode.ToLower(c))
	}
	return text.String()
}

// Of returns the events of one hook.
func (r *Chronicle[E, H]) Of(hook string) (events []E) {
	for _, e := range r.All() {
		if e.Hook == hook {
			events = append(events, e.Event)
		}
	}
	return events
}

// Await waits until one hook was called n times.
func (r *Chronicle[E, H]) Await(t *testing.T, hook string, n int) {
	t.Helper()
	redistest.Eventually(t, fmt.Sprintf("%d times %s", n, hook), func() bool { return len(r.Of(hook)) >= n })
}

// All returns the events so far.
func (r *Chronicle[E, H]) All() []Chronicled[E] {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// Names returns the hooks that were called, in order, without repetitions.
func (r *Chronicle[E, H]) Names() (names []string) {
	for _, e := range r.All() {
		if len(names) == 0 || names[len(names)-1] != e.Hook {
			names = append(names, e.Hook)
		}
	}
	return names
}

// HookThatStays returns a hook that does not return before the test ends.
func HookThatStays[E any](t *testing.T) (hook func(E), entered chan struct{}) {
	t.Helper()
	entered, letGo := make(chan struct{}, 16), make(chan struct{})
	t.Cleanup(func() { close(letGo) })
	return func(E) {
		select {
		case entered <- struct{}{}:
		default:
		}
		<-letGo
	}, entered
}
