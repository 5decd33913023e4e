package relockprom_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/relockprom"
)

// registered returns a new collector, and the registry that it is registered in, which is strict.
func registered(t *testing.T, opts ...relockprom.Option) (*relockprom.Collector, *prometheus.Registry) {
	t.Helper()
	c, err := relockprom.NewCollector(opts...)
	require.NoError(t, err)
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(c))
	return c, registry
}

func locksOn(t *testing.T, rdb redis.UniversalClient, opts ...relock.ClientOption) *relock.Client {
	t.Helper()
	locks, err := relock.New(rdb, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = locks.Close() })
	return locks
}

// endpoint is where a Prometheus would scrape a registry.
type endpoint struct {
	url    string
	client *http.Client
}

func newEndpoint(t *testing.T, registry *prometheus.Registry) endpoint {
	t.Helper()
	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	t.Cleanup(server.Close)
	return endpoint{server.URL, server.Client()}
}

// scrape returns what the endpoint says.
func (e endpoint) scrape(t *testing.T) samples {
	t.Helper()
	response, err := e.client.Get(e.url)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, http.StatusOK, response.StatusCode)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	require.NoError(t, err)
	s := make(samples)
	for _, family := range families {
		s.add(family)
	}
	return s
}

// gathered returns what a scrape would, without a server.
func gathered(t *testing.T, registry prometheus.Gatherer) samples {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	s := make(samples)
	for _, family := range families {
		s.add(family)
	}
	return s
}

// samples are the values of series: name{label="value",...}, with empty labels left out, as Prometheus has it. Of a
// histogram it is the number of observations.
type samples map[string]float64

func (s samples) add(family *dto.MetricFamily) {
	for _, metric := range family.Metric {
		s[series(family.GetName(), metric)] = valueOf(metric)
	}
}

func series(name string, metric *dto.Metric) string {
	var labels []string
	for _, label := range metric.Label {
		if label.GetValue() != "" {
			labels = append(labels, label.GetName()+`="`+label.GetValue()+`"`)
		}
	}
	return name + "{" + strings.Join(labels, ",") + "}"
}

func valueOf(metric *dto.Metric) float64 {
	switch {
	case metric.Counter != nil:
		return metric.Counter.GetValue()
	case metric.Gauge != nil:
		return metric.Gauge.GetValue()
	default:
		return float64(metric.Histogram.GetSampleCount())
	}
}

// of returns the part of s with this name.
func (s samples) of(name string) samples {
	part := make(samples)
	for series, value := range s {
		if strings.HasPrefix(series, name+"{") {
			part[series] = value
		}
	}
	return part
}

// sum adds up the series with this name, and with all of these labels: `result="acquired"`.
func (s samples) sum(name string, labels ...string) float64 {
	sum := 0.0
next:
	for series, value := range s.of(name) {
		for _, label := range labels {
			if !strings.Contains(series, label) {
				continue next
			}
		}
		sum += value
	}
	return sum
}

// nonzero returns the series that are not 0.
func (s samples) nonzero() samples {
	part := make(samples)
	for series, value := range s {
		if value != 0 {
			part[series] = value
		}
	}
	return part
}
