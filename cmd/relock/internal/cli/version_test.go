package cli

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVersion_OriginComesFromTheBuild(t *testing.T) {
	t.Parallel()
	tree := &debug.BuildInfo{Main: debug.Module{Version: "v0.0.0-20261127200000-0123456789ab"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789ab"}, {Key: "vcs.time", Value: "2026-11-27T20:00:00Z"}, {Key: "vcs.modified", Value: "true"},
	}}
	installed := &debug.BuildInfo{Main: debug.Module{Version: "v0.1.0"}}
	for name, test := range map[string]struct {
		info    *debug.BuildInfo
		release string
		want    origin
	}{
		"a release":          {tree, "v0.1.0", origin{"v0.1.0", "0123456789ab", "2026-11-27T20:00:00Z", true}},
		"go build":           {tree, "", origin{"v0.0.0-20261127200000-0123456789ab", "0123456789ab", "2026-11-27T20:00:00Z", true}},
		"go install":         {installed, "", origin{"v0.1.0", "unknown", "unknown", false}},
		"without build info": {new(debug.BuildInfo), "", origin{"unknown", "unknown", "unknown", false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, originOf(test.info, test.release))
		})
	}
}
