package relockotel

import (
	"cmp"

	"go.opentelemetry.io/otel/attribute"

	"github.com/relock-go/relock"
)

// The attributes of metrics and spans. Each has few values.
const (
	kindKey    = attribute.Key("relock.kind")
	sideKey    = attribute.Key("relock.side")
	classKey   = attribute.Key("relock.name.class")
	outcomeKey = attribute.Key("relock.outcome")
	causeKey   = attribute.Key("relock.loss.cause")
)

// The attributes of spans alone.
const (
	nameKey  = attribute.Key("relock.name")
	ownerKey = attribute.Key("relock.owner")
	tokenKey = attribute.Key("relock.token")
)

// The values of relock.outcome in addition to those of relock.Outcome.
const (
	outcomeReleased = "released"
	outcomeLost     = "lost"
	outcomeRenewed  = "renewed"
	outcomeError    = string(relock.OutcomeError)
)

// attributes are those of a metric, of the lock that e is about, and more. What goes up and what goes down
// must have the same ones: they depend on nothing that changes between two events of a lock.
func (t *Telemetry) attributes(e relock.Event, more ...attribute.KeyValue) []attribute.KeyValue {
	attrs := append(t.named(e.Name), kindKey.String(string(e.Kind)))
	if e.Side != "" {
		attrs = append(attrs, sideKey.String(string(e.Side)))
	}
	return append(attrs, more...)
}

// named returns the attributes of a lock if only its name is known.
func (t *Telemetry) named(name string) []attribute.KeyValue {
	attrs := make([]attribute.KeyValue, len(t.common), len(t.common)+8)
	copy(attrs, t.common)
	if class := t.class(name); class != "" {
		attrs = append(attrs, classKey.String(class))
	}
	return attrs
}

// details are the attributes of a span about e.
func (t *Telemetry) details(e relock.Event) []attribute.KeyValue {
	attrs := t.attributes(e, nameKey.String(e.Name), ownerKey.String(cmp.Or(e.Owner, e.OwnerID)))
	if e.Token != 0 {
		attrs = append(attrs, tokenKey.Int64(e.Token))
	}
	return attrs
}
