package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
)

// logger writes what relock says of itself to standard error: lines for people, or JSON. All says
// what happens to the lock, too.
func logger(w io.Writer, asJSON, all bool) *slog.Logger {
	level := slog.LevelInfo
	if all {
		level = slog.LevelDebug
	}
	if asJSON {
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}))
	}
	return slog.New(&lines{w: w, level: level, mu: new(sync.Mutex)})
}

// lines is a handler that writes lines for people.
type lines struct {
	w     io.Writer
	level slog.Level
	attrs []slog.Attr
	mu    *sync.Mutex
}

func (h *lines) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level }

func (h *lines) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString("relock: " + clean(r.Message))
	add := func(a slog.Attr) bool {
		text := a.Value.Resolve().String()
		if strings.ContainsAny(text, " \t\"") {
			text = fmt.Sprintf("%q", text)
		}
		fmt.Fprintf(&b, " %s=%s", a.Key, clean(text))
		return true
	}
	for _, a := range h.attrs {
		add(a)
	}
	r.Attrs(add)
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := io.WriteString(h.w, b.String()+"\n")
	return err
}

func (h *lines) WithAttrs(attrs []slog.Attr) slog.Handler {
	more := *h
	more.attrs = append(append([]slog.Attr(nil), h.attrs...), attrs...)
	return &more
}

func (h *lines) WithGroup(string) slog.Handler { return h }
