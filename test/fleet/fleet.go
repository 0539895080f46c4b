package fleet

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/capnm/cluster-api-node-maintenance/test/clusterapi"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
)

// Options of a fleet. The zero value has one workload cluster.
type Options struct {
	// Workloads names the workload clusters. Default: one, "workload".
	Workloads []string
	// PodReadyDelay and PodDeletionDelay of the kubelets.
	PodReadyDelay, PodDeletionDelay time.Duration
	// ManagerArgs are added to the manager's flags.
	ManagerArgs []string
	// WithoutManager omits our manager. StartManager starts it.
	WithoutManager bool
	// ReleasePace keeps the rate limit of Cluster API's release, which reconciles an object at most once a second. Benchmarks need
	// that; tests do not depend on it and take half the time without.
	ReleasePace bool
	// CoreArgs are added to the flags of Cluster API's core manager.
	CoreArgs []string
	// KeepDir keeps data and logs.
	KeepDir bool
	// Progress, if not nil, is called with the current step.
	Progress func(string)
}

// Fleet is a management cluster and its workload clusters.
type Fleet struct {
	Management *controlplane.ControlPlane
	Core       *clusterapi.Core
	Workloads  map[string]*Workload
	// Client is an administrator's client of the management cluster.
	Client client.WithWatch
	// Manager is our manager, or nil while it is not started.
	Manager *Manager

	options  Options
	provider *kwok.Provider
	links    *kwok.Workloads
}

// Workload is a workload cluster.
type Workload struct {
	*controlplane.ControlPlane
	// Client is an administrator's client of the workload cluster.
	Client client.WithWatch
}

// Start starts a fleet. All of its processes exit with this process, if not before.
func Start(ctx context.Context, options Options) (_ *Fleet, err error) {
	if len(options.Workloads) == 0 {
		options.Workloads = []string{"workload"}
	}
	if options.Progress == nil {
		options.Progress = func(string) {}
	}
	f := &Fleet{Workloads: map[string]*Workload{}, options: options, links: &kwok.Workloads{}}
	defer func() {
		if err != nil {
			_ = f.Stop()
		}
	}()
	if err := f.startControlPlanes(ctx); err != nil {
		return nil, err
	}
	options.Progress("control planes are up")
	if err := f.installClusterAPI(ctx); err != nil {
		return nil, err
	}
	options.Progress("Cluster API core is up")
	if err := f.install(ctx); err != nil {
		return nil, err
	}
	if !options.WithoutManager {
		if err := f.StartManager(ctx); err != nil {
			return nil, err
		}
		options.Progress("Cluster API Node Maintenance is up")
	}
	return f, nil
}

// installClusterAPI installs Cluster API's core and the infrastructure provider in the management cluster, and starts their managers.
func (f *Fleet) installClusterAPI(ctx context.Context) (err error) {
	core := clusterapi.Fast()
	if f.options.ReleasePace {
		core = clusterapi.Options{}
	}
	core.Args = f.options.CoreArgs
	if f.Core, err = clusterapi.Install(ctx, f.Management, core); err != nil {
		return err
	}
	f.provider, err = kwok.Start(context.WithoutCancel(ctx), kwok.Options{Management: f.Management.AdminConfig(), Workload: f.links.Find})
	return err
}

// ForTest starts a fleet that runs as long as the test. If the test fails, the logs are kept.
func ForTest(t testing.TB, options Options) *Fleet {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	f, err := Start(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if f.Manager != nil && strings.Contains(f.Manager.Log(), "WARNING: DATA RACE") {
			t.Error("the manager has a data race: its log has both sides")
		}
		if t.Failed() {
			t.Logf("logs are kept in %s and beside it", f.Management.Dir())
			if f.Manager != nil {
				t.Logf("the manager's log ends with:\n%s", f.Manager.LogTail(60))
			}
			f.keep()
		}
		if err := f.Stop(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func (f *Fleet) keep() {
	f.Management.KeepLogs()
	for _, workload := range f.Workloads {
		workload.KeepLogs()
	}
}

// patientWithNodes makes the node lifecycle controller tolerate late leases, which occur on a busy machine and after an API server was
// stopped. It would set all Pods of such Nodes to not ready, independent of any PodDisruptionBudget. Tests of unreachable Nodes set the
// Node's condition instead.
const patientWithNodes = "--node-monitor-grace-period=1h"

func (f *Fleet) startControlPlanes(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return f.startManagement(ctx, "management") })
	started := make([]*Workload, len(f.options.Workloads))
	for i, name := range f.options.Workloads {
		group.Go(func() error {
			cp, err := controlplane.Start(ctx, controlplane.Options{
				Name: name, Scheduler: true, Kwok: true, KeepDir: f.options.KeepDir,
				PodReadyDelay: f.options.PodReadyDelay, PodDeletionDelay: f.options.PodDeletionDelay,
				ExtraArgs: map[controlplane.Component][]string{controlplane.ControllerManager: {patientWithNodes}},
			})
			if err != nil {
				return err
			}
			workload := &Workload{ControlPlane: cp}
			started[i] = workload
			workload.Client, err = client.NewWithWatch(cp.AdminConfig(), client.Options{Scheme: clusterapi.Scheme()})
			return errors.Wrapf(err, "creating a client of workload cluster %s", name)
		})
	}
	err := group.Wait()
	for i, name := range f.options.Workloads {
		if started[i] != nil {
			f.Workloads[name] = started[i]
		}
	}
	return err
}

func (f *Fleet) startManagement(ctx context.Context, name string) (err error) {
	f.Management, err = controlplane.Start(ctx, controlplane.Options{Name: name, KeepDir: f.options.KeepDir})
	if err != nil {
		return err
	}
	f.Client, err = client.NewWithWatch(f.Management.AdminConfig(), client.Options{Scheme: clusterapi.Scheme()})
	return errors.Wrap(err, "creating a client of the management cluster")
}

// InfrastructureRole is the ClusterRole with which our manager reads the infrastructure and control plane objects of these tests.
const InfrastructureRole = "capnm-test-infrastructure"

// install applies the CRDs and the roles of an installation to the management cluster. The infrastructure of these tests has a separate
// API group, so a role for it is aggregated to that of the manager.
func (f *Fleet) install(ctx context.Context) error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(root, "config", "crd", "bases", "*.yaml"))
	if err != nil {
		return errors.Wrap(err, "finding the CRDs")
	}
	for _, file := range append(files, filepath.Join(root, "config", "rbac", "role.yaml")) {
		if err := applyFile(ctx, f.Client, file); err != nil {
			return err
		}
	}
	subject := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: managerGroup}}
	objects := []client.Object{
		&rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: InfrastructureRole},
			Rules: []rbacv1.PolicyRule{{
				APIGroups: []string{"infrastructure.test.capnm.dev", "controlplane.test.capnm.dev"}, Resources: []string{"*"}, Verbs: []string{"get"},
			}},
		},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "capnm-manager"}, Subjects: subject,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "capnm-manager-role"},
		},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: InfrastructureRole}, Subjects: subject,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: InfrastructureRole},
		},
	}
	if err := kwok.Create(ctx, f.Client, objects); err != nil {
		return err
	}
	return f.waitForCRD(ctx, "machinedrainpolicies.maintenance.cluster.x-k8s.io")
}

func (f *Fleet) waitForCRD(ctx context.Context, name string) error {
	return errors.Wrapf(wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := f.Client.Get(ctx, client.ObjectKey{Name: name}, crd); err != nil {
			return false, client.IgnoreNotFound(err)
		}
		for _, condition := range crd.Status.Conditions {
			if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
				return true, nil
			}
		}
		return false, nil
	}), "waiting for CRD %s", name)
}

func applyFile(ctx context.Context, c client.Client, file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return errors.Wrapf(err, "reading %s", file)
	}
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(content, &object.Object); err != nil {
		return errors.Wrapf(err, "parsing %s", file)
	}
	err = c.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("fleet"), client.ForceOwnership)
	return errors.Wrapf(err, "applying %s", file)
}

// Connect registers the workload cluster of a Cluster with the infrastructure provider. Cluster API and our manager reach it over the link
// that CutNetwork cuts.
func (f *Fleet) Connect(cluster kwok.Cluster, workload string) error {
	link, err := kwok.Proxied(f.Workloads[workload].ControlPlane)
	if err != nil {
		return err
	}
	f.ConnectOver(cluster, link)
	return nil
}

// ConnectOver registers how a Cluster is reached with the infrastructure provider.
func (f *Fleet) ConnectOver(cluster kwok.Cluster, link kwok.Workload) {
	f.links.Add(cluster.Key(), link)
}

// Stop stops all processes.
func (f *Fleet) Stop() error {
	errs := []error{f.StopManagement()}
	for _, workload := range f.Workloads {
		errs = append(errs, workload.Stop())
	}
	return firstError(errs)
}

// StopManagement stops the management cluster and the managers in it.
func (f *Fleet) StopManagement() error {
	var errs []error
	if f.Manager != nil {
		errs = append(errs, f.Manager.Stop())
	}
	if f.provider != nil {
		errs = append(errs, f.provider.Stop())
	}
	if f.Core != nil {
		errs = append(errs, f.Core.Stop())
	}
	if f.Management != nil {
		errs = append(errs, f.Management.Stop())
	}
	return firstError(errs)
}

func firstError(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
