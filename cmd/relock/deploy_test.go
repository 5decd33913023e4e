//go:build unix

package main_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/relock-go/relock/internal/pagetest"
)

// What docs/deploy.md shows, and the files that it links to. .ci/site checks what is Kubernetes' own.

// calls are the lines of a file that call relock, as a shell would get them. Of a page it is what stands between fences, and
// what stands in the text and is a whole call: `relock run NAME -- CMD`.
func calls(file, text string) (found []string) {
	if filepath.Ext(file) == ".md" {
		var code []string
		for _, language := range []string{"", "sh", "yaml"} {
			code = append(code, pagetest.Blocks(text, language)...)
		}
		for _, m := range regexp.MustCompile("`(relock run [^`]* -- [^`]*)`").FindAllStringSubmatch(pagetest.Prose(text), -1) {
			code = append(code, m[1]+"\n")
		}
		text = strings.Join(code, "")
	}
	list := regexp.MustCompile(`\["?relock"?, .*\]`) // of YAML or JSON
	text = list.ReplaceAllStringFunc(text, func(list string) string {
		return strings.NewReplacer("[", "", "]", "", `"`, "", ",", "").Replace(list)
	})
	call := regexp.MustCompile(`\brelock (run|ls|state|watch|force|doctor|man|version|completion|help|urls|exit-codes)\b`)
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "#") {
			continue
		}
		for _, at := range call.FindAllStringIndex(line, -1) { // a relock run may be in another one
			found = append(found, strings.TrimSpace(line[at[0]:]))
		}
	}
	return found
}

// The address leads nowhere, so that no command is started. relock looks at it after the flags and arguments.
func TestDocs_CallsOfRelockHaveFlagsAndArgumentsThatItTakes(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	files = append(files, "README.md", "../../README.md", "../../examples/README.md", "../../recipes/README.md")
	require.NoError(t, filepath.WalkDir("../../deploy", func(file string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && filepath.Ext(file) != ".go" {
			files = append(files, file)
		}
		return err
	}))
	bin := t.TempDir()
	require.NoError(t, os.Symlink(program, filepath.Join(bin, "relock")))
	callers := make(map[string]int)
	for _, file := range files {
		for _, line := range calls(file, pagetest.Read(t, file)) {
			callers[filepath.Base(file)]++
			cmd := exec.Command("sh", "-c", line)
			cmd.Env = append(environ("nowhere://", t.Name()), "PATH="+bin+":"+os.Getenv("PATH"))
			var errs strings.Builder
			cmd.Stderr = &errs
			if err := cmd.Run(); err == nil && errs.Len() == 0 {
				continue // it needs no Redis
			}
			require.Contains(t, errs.String(), "the Redis URL nowhere://", "%s: %s", file, line)
		}
	}
	for _, file := range []string{"README.md", "deploy.md", "report.service", "scheduler.service", "cronjob.yaml", "deployment.yaml", "Dockerfile"} {
		require.NotZero(t, callers[file], file)
	}
	require.Equal(t, 2, callers["migrate.yaml"])
}

func TestDeploy_UnitsOfSystemdAreValid(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	switch {
	case err == nil:
	case os.Getenv("RELOCK_REQUIRE_SYSTEMD") == "1":
		t.Fatal("RELOCK_REQUIRE_SYSTEMD=1 but no systemd-analyze on PATH")
	default:
		t.Skip("no systemd-analyze on PATH: it comes with systemd")
	}
	bin, units := t.TempDir(), t.TempDir() // systemd-analyze wants the programs to be there
	for _, name := range []string{"relock", "report", "scheduler"} {
		require.NoError(t, os.Symlink(program, filepath.Join(bin, name)))
	}
	files, err := filepath.Glob("../../deploy/systemd/*")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	args := []string{"verify", "--man=no", "--recursive-errors=one"}
	for _, file := range files {
		unit := filepath.Join(units, filepath.Base(file))
		text := strings.ReplaceAll(pagetest.Read(t, file), "/usr/local/bin/", bin+"/")
		require.NoError(t, os.WriteFile(unit, []byte(text), 0o600))
		args = append(args, unit)
	}
	output, err := exec.CommandContext(t.Context(), analyze, args...).CombinedOutput()
	require.NoError(t, err, string(output))
	require.Empty(t, string(output))
}

// As systemd with KillMode=mixed, Kubernetes and Docker stop relock: SIGTERM to it alone.
func TestDeploy_StoppedHolderHandsOverWhenItsCommandHasEnded(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	order := inDir(t, "order")
	holder := start(t, url, "run", "a", "--", "sh", "-c", `trap "sleep 0.3; echo stopped >>`+order+`; exit 0" TERM; echo ready; `+loop("sleep 0.02"))
	holder.awaitOut(t, "ready")
	next := start(t, url, "run", "a", "--", "sh", "-c", "echo started >>"+order+"; echo started")
	awaitWaiters(t, s.Client(t), "a", 1)
	holder.signal(t, sigTerm)
	require.Equal(t, 0, holder.wait(t))
	require.Equal(t, 0, next.wait(t), "before the TTL ends")
	require.Equal(t, "stopped\nstarted\n", pagetest.Read(t, order))
}

// systemctl stop ends a relock that waits, and one whose program has no handler of SIGTERM.
func TestDeploy_StopOfTheServiceIsNoFailureForSystemd(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	success := regexp.MustCompile(`(?m)^SuccessExitStatus=(\d+)$`).FindStringSubmatch(pagetest.Read(t, "../../deploy/systemd/scheduler.service"))
	require.NotNil(t, success)
	active := start(t, url, "run", "scheduler", "--", "sh", "-c", readyAndWait)
	active.awaitOut(t, "ready")
	waiting := start(t, url, "run", "scheduler", "--", "true")
	awaitWaiters(t, s.Client(t), "scheduler", 1)
	for _, p := range []*process{waiting, active} {
		p.signal(t, sigTerm)
		require.Equal(t, success[1], strconv.Itoa(p.wait(t)))
	}
}

// action is action.yml: the syntax of GitHub, as far as it is used.
type action struct {
	Name, Description string
	Inputs            map[string]struct {
		Description, Default string
		Required             bool
	}
	Runs struct {
		Using string
		Steps []struct {
			ID, If, Uses, Shell, Run string
			With, Env                map[string]string
		}
	}
}

func readAction(t *testing.T) (a action) {
	t.Helper()
	decoder := yaml.NewDecoder(strings.NewReader(pagetest.Read(t, "../../action.yml")))
	decoder.KnownFields(true)
	require.NoError(t, decoder.Decode(&a))
	return a
}

// perform runs the steps of the action that are commands, as GitHub does.
func (a action) perform(t *testing.T, inputs map[string]string) (code int, output string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	temp := t.TempDir()
	expression := regexp.MustCompile(`\$\{\{ inputs\.(\w+) \}\}`)
	for _, step := range a.Runs.Steps {
		if step.Run == "" {
			continue
		}
		require.Equal(t, "bash", step.Shell)
		require.NotContains(t, step.Run, "${{", "the shell would run what is in an input")
		cmd := exec.Command("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step.Run)
		cmd.Env = append(append(os.Environ(), environ("", t.Name())...), "GITHUB_ACTION_PATH="+root, "RUNNER_TEMP="+temp,
			"GITHUB_OUTPUT="+filepath.Join(temp, "output"), "GOOS=plan9", "FLAGS=of the job", "LOCK=of the job",
			"GOFLAGS="+os.Getenv("GOFLAGS")+" "+strings.Join(raceFlags, " "))
		for variable, value := range step.Env {
			cmd.Env = append(cmd.Env, variable+"="+expression.ReplaceAllStringFunc(value, func(s string) string {
				name := expression.FindStringSubmatch(s)[1]
				require.Contains(t, a.Inputs, name)
				if input, given := inputs[name]; given {
					return input
				}
				return a.Inputs[name].Default
			}))
		}
		p := startCommand(t, cmd)
		if code = p.wait(t); code != 0 {
			return code, p.out.String() + p.err.String()
		}
		output += p.out.String()
	}
	return code, output
}

func TestDeploy_ActionRunsItsCommandsUnderTheLock(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	a := readAction(t)
	require.Equal(t, "composite", a.Runs.Using)
	name := "deploy:$(echo shop)" // no shell looks at it
	inputs := map[string]string{"redis": url, "name": name, "run": "echo \"$RELOCK_NAME, $FLAGS, $LOCK\"\nfalse\necho not reached"}
	code, output := a.perform(t, inputs)
	require.Equal(t, 1, code, output)
	require.Equal(t, name+", of the job, of the job\n", output)
	holder := start(t, url, "run", name, "--", "sh", "-c", "echo ready; exec sleep 60")
	holder.awaitOut(t, "ready")
	inputs["flags"] = "-n -E 9"
	code, output = a.perform(t, inputs)
	require.Equal(t, 9, code, output)
}

func TestDeploy_PageGivesTheActionItsInputs(t *testing.T) {
	t.Parallel()
	blocks := pagetest.Blocks(pagetest.Read(t, "../../docs/deploy.md"), "yaml")
	require.Len(t, blocks, 1)
	var steps []struct {
		Uses string
		With map[string]string
	}
	require.NoError(t, yaml.Unmarshal([]byte(blocks[0]), &steps))
	require.Len(t, steps, 1)
	require.Contains(t, steps[0].Uses, "relock-go/relock@")
	for name, input := range readAction(t).Inputs {
		if input.Required {
			require.Contains(t, steps[0].With, name)
		}
	}
	for name := range steps[0].With {
		require.Contains(t, readAction(t).Inputs, name)
	}
}
