package fleet

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/pkg/errors"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

const (
	// InstallationNamespace is the namespace of an installation.
	InstallationNamespace = "capnm-system"
	// InstallationUser is the user of an installed manager.
	InstallationUser = "system:serviceaccount:" + InstallationNamespace + ":capnm-manager"

	installedPodLabel = "control-plane"
	kubeletPace       = 100 * time.Millisecond
)

// Kubelet runs the Pods of an installation's Deployment. It cannot run images, so it runs the manager of each Pod as a process, with the
// arguments of its container except for addresses, and a token of its ServiceAccount. The Pod is ready when the process is.
type Kubelet struct {
	management *controlplane.ControlPlane
	client     client.Client
	binary     func(image string) (string, error)

	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	running map[string]*installed // by Pod name
	err     error
}

// installed is the manager of one Pod.
type installed struct {
	process             *controlplane.Process
	health, diagnostics string
	ready               bool
}

// StartKubelet runs the Pods of the installation in a management cluster until Stop. binary returns the program of an image.
func StartKubelet(management *controlplane.ControlPlane, c client.Client, binary func(image string) (string, error)) *Kubelet {
	ctx, cancel := context.WithCancel(context.Background())
	k := &Kubelet{management: management, client: c, binary: binary, cancel: cancel, done: make(chan struct{}), running: map[string]*installed{}}
	go k.run(ctx)
	return k
}

// Stop stops all managers. Their Pods are not changed.
func (k *Kubelet) Stop() {
	k.cancel()
	<-k.done
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, manager := range k.running {
		_ = manager.process.Stop()
	}
}

// Running returns the names of the Pods whose manager runs and is ready.
func (k *Kubelet) Running() ([]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var names []string
	for name, manager := range k.running {
		if manager.ready {
			names = append(names, name)
		}
	}
	return names, k.err
}

// Diagnostics returns the diagnostics address of the manager of a Pod.
func (k *Kubelet) Diagnostics(pod string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.running[pod].diagnostics
}

// Log returns the log of the manager of a Pod.
func (k *Kubelet) Log(pod string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.running[pod].process.Log()
}

// Kill kills the manager of a Pod with SIGKILL. The manager is restarted, as by a kubelet.
func (k *Kubelet) Kill(pod string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.running[pod].process.Kill()
}

func (k *Kubelet) run(ctx context.Context) {
	defer close(k.done)
	ticker := time.NewTicker(kubeletPace)
	defer ticker.Stop()
	for {
		err := k.sync(ctx)
		k.mu.Lock()
		k.err = err
		k.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// sync starts and stops processes to match the Pods.
func (k *Kubelet) sync(ctx context.Context) error {
	pods := &corev1.PodList{}
	if err := k.client.List(ctx, pods, client.InNamespace(InstallationNamespace), client.HasLabels{installedPodLabel}); err != nil {
		return errors.Wrap(err, "listing the Pods of the installation")
	}
	wanted := map[string]bool{}
	for i := range pods.Items {
		if pod := &pods.Items[i]; pod.DeletionTimestamp.IsZero() {
			wanted[pod.Name] = true
			if err := k.syncPod(ctx, pod); err != nil {
				return err
			}
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, manager := range k.running {
		if !wanted[name] {
			_ = manager.process.Stop() // a killed process has exited, too
			delete(k.running, name)
		}
	}
	return nil
}

func (k *Kubelet) syncPod(ctx context.Context, pod *corev1.Pod) error {
	k.mu.Lock()
	manager := k.running[pod.Name]
	k.mu.Unlock()
	if manager == nil || ended(manager.process) {
		var err error
		if manager, err = k.start(ctx, pod); err != nil {
			return err
		}
		k.mu.Lock()
		k.running[pod.Name] = manager
		k.mu.Unlock()
	}
	ready := get(ctx, "http://"+manager.health+"/readyz") == nil
	if err := k.report(ctx, pod, ready); err != nil {
		return err
	}
	k.mu.Lock()
	manager.ready = ready
	k.mu.Unlock()
	return nil
}

func ended(process *controlplane.Process) bool {
	select {
	case <-process.Done():
		return true
	default:
		return false
	}
}

func (k *Kubelet) report(ctx context.Context, pod *corev1.Pod, ready bool) error {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status == status {
			return nil
		}
	}
	before := pod.DeepCopy()
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.Now()}}
	err := k.client.Status().Patch(ctx, pod, client.MergeFrom(before))
	return errors.Wrapf(client.IgnoreNotFound(err), "reporting Pod %s", pod.Name)
}

func (k *Kubelet) start(ctx context.Context, pod *corev1.Pod) (_ *installed, err error) {
	container := pod.Spec.Containers[0]
	path, err := k.binary(container.Image)
	if err != nil {
		return nil, err
	}
	kubeconfig, err := k.kubeconfig(ctx, pod)
	if err != nil {
		return nil, err
	}
	manager := &installed{}
	for _, address := range []*string{&manager.health, &manager.diagnostics} {
		if *address, err = FreeAddress(); err != nil {
			return nil, err
		}
	}
	var args []string
	for _, arg := range container.Args {
		if !strings.HasPrefix(arg, "--diagnostics-address=") { // many managers share this machine
			args = append(args, arg)
		}
	}
	args = append(args, "--diagnostics-address="+manager.diagnostics, "--health-addr="+manager.health,
		// In a Pod both come from files of the kubelet.
		"--kubeconfig="+kubeconfig, "--leader-elect-resource-namespace="+pod.Namespace)
	manager.process, err = k.management.RunProcess(ctx, controlplane.ProcessSpec{Name: pod.Name, Path: path, Args: args})
	return manager, errors.Wrapf(err, "starting the manager of Pod %s", pod.Name)
}

// kubeconfig writes one with a token of the Pod's ServiceAccount.
func (k *Kubelet) kubeconfig(ctx context.Context, pod *corev1.Pod) (string, error) {
	token := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{
		APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID,
	}}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Spec.ServiceAccountName}}
	if err := k.client.SubResource("token").Create(ctx, account, token); err != nil {
		return "", errors.Wrapf(err, "getting a token for Pod %s", pod.Name)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["management"] = &clientcmdapi.Cluster{Server: k.management.AdminConfig().Host, CertificateAuthorityData: k.management.CAData()}
	config.AuthInfos["manager"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	config.Contexts["manager"] = &clientcmdapi.Context{Cluster: "management", AuthInfo: "manager"}
	config.CurrentContext = "manager"
	content, err := clientcmd.Write(*config)
	if err != nil {
		return "", errors.Wrap(err, "writing the manager's kubeconfig")
	}
	file := filepath.Join(k.management.Dir(), pod.Name+".kubeconfig")
	return file, errors.Wrap(os.WriteFile(file, content, 0o600), "writing the manager's kubeconfig")
}
