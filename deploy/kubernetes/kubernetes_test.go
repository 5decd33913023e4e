package kubernetes_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// Strict: a field that Kubernetes does not know is an error, and so is one that is there twice.
func TestKubernetes_FilesHaveTheFieldsOfTheAPI(t *testing.T) {
	files, err := filepath.Glob("*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(file, func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			var kind struct{ APIVersion, Kind string }
			require.NoError(t, yaml.Unmarshal(text, &kind))
			var template corev1.PodTemplateSpec
			switch kind.APIVersion + " " + kind.Kind {
			case "batch/v1 CronJob":
				var job batchv1.CronJob
				require.NoError(t, yaml.UnmarshalStrict(text, &job))
				template = job.Spec.JobTemplate.Spec.Template
			case "apps/v1 Deployment":
				var deployment appsv1.Deployment
				require.NoError(t, yaml.UnmarshalStrict(text, &deployment))
				template = deployment.Spec.Template
				for label, value := range deployment.Spec.Selector.MatchLabels {
					require.Equal(t, value, template.Labels[label], "the selector finds the pods")
				}
			default:
				t.Fatalf("no test for %v", kind)
			}
			requirePod(t, template.Spec)
		})
	}
}

// requirePod requires what the API server checks of a pod, and that each relock has an address.
func requirePod(t *testing.T, pod corev1.PodSpec) {
	t.Helper()
	require.NotEmpty(t, pod.Containers)
	locks := 0
	for _, container := range append(pod.InitContainers, pod.Containers...) {
		require.NotEmpty(t, container.Name)
		require.NotEmpty(t, container.Image)
		require.NotEmpty(t, container.Command)
		if container.Command[0] != "relock" {
			continue
		}
		locks++
		require.Len(t, container.Env, 1)
		require.Equal(t, "RELOCK_REDIS", container.Env[0].Name)
		require.NotEmpty(t, container.Env[0].ValueFrom.SecretKeyRef.Key)
	}
	require.NotZero(t, locks)
}
