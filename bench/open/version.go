package main

import (
	"path/filepath"
	"regexp"
	"runtime/debug"
)

// versionOf returns the version of a contender's library, "" for the one in this repository.
func (e *environment) versionOf(c contender) string {
	switch c.peer {
	case peerPython:
		return redisPy
	case peerJava:
		jars, _ := filepath.Glob(filepath.Join(filepath.Dir(e.jar), "lib", c.module+"-*.jar"))
		for _, jar := range jars {
			if m := regexp.MustCompile(`-(\d[\w.]*)\.jar$`).FindStringSubmatch(jar); m != nil {
				return m[1]
			}
		}
		return ""
	}
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return ""
	}
	for _, module := range info.Deps {
		if module.Path == c.module {
			return module.Version
		}
	}
	return ""
}
