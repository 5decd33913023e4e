package cli

import (
	"strings"

	"github.com/relock-go/relock/cmd/relock/internal/look"
)

// brief is an owner for eyes: of its client's uuid the beginning is enough.
func brief(owner string) string {
	client, rest, _ := strings.Cut(owner, ":")
	if len(client) == 36 {
		client = client[:8]
	}
	return clean(client + ":" + rest)
}

// who names an owner, with its host and program if they are known.
func who(owner string, c *look.Client) string {
	text := brief(owner)
	if place := where(c); place != "" {
		text += " (" + place + ")"
	}
	return text
}

// where is the host and program of a client; "" if they are not known.
func where(c *look.Client) string {
	if c == nil {
		return ""
	}
	text := c.Host
	if c.Program != "" {
		text += " " + c.Program
	}
	if c.PID != "" {
		text += "[" + c.PID + "]"
	}
	return clean(strings.TrimSpace(text))
}
