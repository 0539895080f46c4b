// Command manager runs the controllers of Cluster API Node Maintenance. It contains only flags and wiring.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	goruntime "runtime"
	"runtime/debug"
	"time"

	"github.com/pkg/errors"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kerrors "k8s.io/apimachinery/pkg/util/errors"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	cliflag "k8s.io/component-base/cli/flag"
	logsv1 "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/apiwarnings"
	"sigs.k8s.io/cluster-api/util/flags"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/drainoutcome"
	"github.com/capnm/cluster-api-node-maintenance/controllers/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/controllers/evacuators/daemonset"
	"github.com/capnm/cluster-api-node-maintenance/controllers/evacuators/deployment"
	"github.com/capnm/cluster-api-node-maintenance/controllers/evacuators/statefulset"
	"github.com/capnm/cluster-api-node-maintenance/controllers/evacuators/staticpod"
	"github.com/capnm/cluster-api-node-maintenance/controllers/evictor"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expectations"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machine"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinedeployment"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinedrainpolicy"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/nodemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/queues"
	"github.com/capnm/cluster-api-node-maintenance/controllers/setaside"
	"github.com/capnm/cluster-api-node-maintenance/controllers/tracing"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workloadcluster"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

const (
	controllerName   = "cluster-api-node-maintenance"
	leaderElectionID = "controller-leader-election-capnm"

	// shutdownTimeout is less than the Pod's terminationGracePeriodSeconds, so that the manager releases its lease even if a controller
	// does not stop.
	shutdownTimeout = 8 * time.Second

	// gcPercent is the default of GOGC. Idle clusters take memory but produce hardly any garbage: half of Go's default saves an eighth of
	// the resident memory. docs/benchmarks.md has the figures.
	gcPercent = 50
)

// version is the version of the build. The linker sets it.
var version = "dev"

// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	o := newOptions()
	o.addFlags(pflag.CommandLine)
	pflag.CommandLine.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	pflag.CommandLine.AddGoFlagSet(flag.CommandLine)
	if err := pflag.CommandLine.Set("v", "2"); err != nil {
		fail(errors.Wrap(err, "setting the default log level"))
	}
	pflag.Parse()
	if err := logsv1.ValidateAndApply(o.logs, featureGates); err != nil {
		fail(errors.Wrap(err, "applying the logging flags"))
	}
	ctrl.SetLogger(klog.Background())
	ctx := ctrl.SetupSignalHandler()
	restConfig, err := ctrl.GetConfig()
	if err != nil {
		fail(errors.Wrap(err, "reading the kubeconfig of the management cluster"))
	}
	if err := run(ctx, o, restConfig); err != nil {
		fail(err)
	}
}

// userAgent returns the user agent, which distinguishes requests of this manager from those of Cluster API's managers, which use the same
// kubeconfigs.
func userAgent() string {
	return fmt.Sprintf("%s/%s (%s/%s)", controllerName, version, goruntime.GOOS, goruntime.GOARCH)
}

func fail(err error) {
	fmt.Fprintf(os.Stderr, "Unable to run the manager: %v\n", err)
	os.Exit(1)
}

// run runs the manager for a management cluster until the context ends.
func run(ctx context.Context, o *options, restConfig *rest.Config) error {
	log := ctrl.Log.WithName("setup")
	restConfig.QPS, restConfig.Burst = o.kubeAPIQPS, o.kubeAPIBurst
	restConfig.UserAgent = userAgent()
	restConfig.WarningHandler = apiwarnings.DefaultHandler(klog.Background().WithName("API Server Warning"))

	_, metricsOptions, err := flags.GetManagerOptions(o.manager)
	if err != nil {
		return errors.Wrap(err, "reading the diagnostics flags")
	}
	scheme := newScheme()
	unread, report := newUnread()
	cacheOptions, err := o.cacheOptions(restConfig, scheme, unread)
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(restConfig, ctrl.Options{
		Scheme:                     scheme,
		Controller:                 config.Controller{UsePriorityQueue: ptr.To(true), SkipNameValidation: &o.severalInProcess},
		LeaderElection:             o.leaderElection,
		LeaderElectionID:           leaderElectionID,
		LeaderElectionResourceLock: resourcelock.LeasesResourceLock,
		LeaderElectionNamespace:    o.leaderElectionNamespace,
		LeaseDuration:              &o.leaseDuration,
		RenewDeadline:              &o.renewDeadline,
		RetryPeriod:                &o.retryPeriod,
		// Releasing the lease is safe: the process exits right after the manager has stopped.
		LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout:       ptr.To(shutdownTimeout),
		HealthProbeBindAddress:        o.healthAddr,
		PprofBindAddress:              o.profilerAddr,
		Metrics:                       *metricsOptions,
		Cache:                         cacheOptions,
		Client:                        client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}, &corev1.Namespace{}}}},
	})
	if err != nil {
		return errors.Wrap(err, "creating the manager")
	}
	if o.wrap != nil {
		mgr = o.wrap(mgr)
	}
	report.on(mgr.GetEventRecorderFor("node-maintenance")) //nolint:staticcheck // core events, as of the other controllers
	if err := addChecks(ctx, mgr); err != nil {
		return err
	}
	managementCluster, err := identify(ctx, mgr.GetAPIReader())
	if err != nil {
		return err
	}
	exporter, err := newExporter(ctx, o)
	if err != nil {
		return err
	}
	defer exporter.Shutdown()
	if err := setupControllers(ctx, mgr, o, managementCluster, tracing.NewRecorder(ctx, exporter), unread); err != nil {
		return err
	}
	log.Info("Starting manager", "version", version, "managementCluster", managementCluster)
	return errors.Wrap(mgr.Start(ctx), "running the manager")
}

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, clusterv1.AddToScheme, v1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err) // duplicate kinds: a programming error
		}
	}
	return scheme
}

// identify returns the identity of this management cluster, which distinguishes it from others that manage the same workload cluster.
func identify(ctx context.Context, reader client.Reader) (string, error) {
	kubeSystem := &corev1.Namespace{}
	if err := reader.Get(ctx, types.NamespacedName{Name: metav1.NamespaceSystem}, kubeSystem); err != nil {
		return "", errors.Wrap(err, "reading the UID of the management cluster's namespace kube-system")
	}
	return string(kubeSystem.UID), nil
}

// setupClusters adds the connections to workload clusters, and Cluster API's cache of them.
func setupClusters(ctx context.Context, mgr ctrl.Manager, o *options, local client.Client) (*workload.Clusters, *queues.ConnectOrder, error) {
	secrets, err := client.New(mgr.GetConfig(), client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme()})
	if err != nil {
		return nil, nil, errors.Wrap(err, "creating a client for kubeconfig Secrets")
	}
	filter, order := machinedrain.WatchFilter(o.watchFilter), &queues.ConnectOrder{Machines: local, Clock: clock.RealClock{}}
	cache, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
		SecretClient: secrets,
		// Unlike the filter of events, this one closes the connection to a Cluster whose label is changed.
		ClusterFilter: func(cluster *clusterv1.Cluster) bool { return filter.Selects(cluster) },
		Client: clustercache.ClientOptions{
			QPS: o.clusterCacheQPS, Burst: o.clusterCacheBurst,
			UserAgent: userAgent(),
		},
	}, order.Options(o.clusterCacheConcurrency))
	if err != nil {
		return nil, nil, errors.Wrap(err, "setting up the cluster cache")
	}
	clusters := workload.NewClusters(local, cache, mgr.GetScheme(), workload.Limits{QPS: o.evictionQPS, Burst: o.evictionBurst}, clock.RealClock{})
	clusters.Filter = filter
	clusters.UseCaches(workloadCaches())
	return clusters, order, nil
}

// outcomeWorkers is the number of MachineDrainPolicies whose recent drains are read at the same time.
const outcomeWorkers = 4

func setupControllers(ctx context.Context, mgr ctrl.Manager, o *options, managementCluster string, recorder *tracing.Recorder, unread *setaside.Objects) error {
	now, local := clock.RealClock{}, unread.Client(mgr.GetClient())
	clusters, order, err := setupClusters(ctx, mgr, o, local)
	if err != nil {
		return err
	}
	filter := clusters.Filter
	requester := &machinemaintenance.Requester{Client: local, Unread: unread, ManagementCluster: managementCluster}
	written := expectations.New[*v1alpha1.Evacuation](ctx, workload.Trim)

	ofMaintenance := queues.FairOptions(o.nodeMaintenanceConcurrency, workload.ClusterOf)
	ofEvacuation := queues.FairOptions(o.evacuationConcurrency, workload.ClusterOf)

	var failures []error
	var watches []workload.Watches
	// add adds a component: the result of its set-up, and its watches in workload clusters.
	add := func(failure error, of ...workload.Watches) {
		failures, watches = append(failures, failure), append(watches, of...)
	}
	add(requester.SetupWithManager(ctx, mgr))
	daemonSets := &daemonset.Reconciler{Clusters: clusters, Maintenances: requester, Clock: now}
	add(daemonSets.SetupWithManager(ctx, mgr, ofEvacuation), daemonSets.Watches)
	deployments := &deployment.Reconciler{Clusters: clusters, Maintenances: requester, Clock: now}
	add(deployments.SetupWithManager(ctx, mgr, ofEvacuation), deployments.Watches)
	statefulSets := &statefulset.Reconciler{Clusters: clusters, Maintenances: requester, Clock: now}
	add(statefulSets.SetupWithManager(mgr, ofEvacuation), statefulSets.Watches)
	outcomes := &drainoutcome.Reconciler{Client: local, Clusters: clusters, Filter: filter, Recorder: recorder, Clock: now}
	add(outcomes.SetupWithManager(mgr, queues.FairOptions(outcomeWorkers, itself)))
	machines := &machine.Reconciler{
		Client: local, APIReader: mgr.GetAPIReader(), Clusters: clusters, Maintenances: requester, Recorder: recorder, Outcomes: outcomes, Clock: now,
		Filter: filter, ConnectNow: order.ConnectNow,
	}
	add(machines.SetupWithManager(ctx, mgr, queues.FairOptions(o.machineConcurrency, clusterOfMachine(ctx, local))), machines.Watches)
	rollouts := &machinedeployment.Reconciler{Client: local, Unread: unread, Clusters: clusters, Maintenances: requester, Clock: now, Filter: filter}
	add(rollouts.SetupWithManager(ctx, mgr, queues.FairOptions(o.machineConcurrency, clusterOfDeployment(ctx, local))), rollouts.Watches)
	policies := &machinedrainpolicy.Reconciler{Client: local, Clusters: clusters, Clock: now}
	add(policies.SetupWithManager(mgr, queues.FairOptions(1, itself)))
	maintenances := &nodemaintenance.Reconciler{
		Clusters: clusters, Recorder: recorder, Clock: now, ManagementCluster: managementCluster, Machines: local, Maintenances: requester,
		NodeAgent: featureGates.Enabled(nodeAgentGate),
	}
	add(maintenances.SetupWithManager(ctx, mgr, ofMaintenance), maintenances.Watches)
	evacuations := &evacuation.Reconciler{Clusters: clusters, Maintenances: requester, Written: written, Clock: now}
	add(evacuations.SetupWithManager(ctx, mgr, ofEvacuation), evacuations.Watches)
	evictions := &evictor.Evictor{Clusters: clusters, Maintenances: requester, Written: written, Recorder: recorder, Clock: now}
	add(evictions.SetupWithManager(mgr, queues.FairOptions(o.evictorConcurrency, itself)), evictions.Watches)
	sweeper := &nodemaintenance.Sweeper{Clusters: clusters, Machines: local, Maintenances: requester, Clock: now}
	add(sweeper.SetupWithManager(mgr, ofMaintenance), sweeper.Watches)
	workloads := &workloadcluster.Reconciler{
		Client: local, APIReader: mgr.GetAPIReader(), Clock: now, Clusters: clusters, Filter: filter, Unread: unread, ManagementCluster: managementCluster,
	}
	if featureGates.Enabled(nodeAgentGate) {
		staticPods := &staticpod.Reconciler{Clusters: clusters}
		add(staticPods.SetupWithManager(mgr, ofMaintenance), staticPods.Watches)
		workloads.NodeAgentImage = o.nodeAgentImage
	}
	workloads.Watches = watches
	add(workloads.SetupWithManager(ctx, mgr, queues.FairOptions(o.clusterCacheConcurrency, itself)))
	return kerrors.NewAggregate(failures)
}

func workloadCaches() workload.CacheOptions {
	return workload.CacheOptions{
		Transform: workload.Trim, ByObject: cachedByObject(),
		// A read of these kinds must not start an informer for all of their objects.
		Uncached: []client.Object{&corev1.Pod{}, &corev1.Secret{}, &corev1.ConfigMap{}, &policyv1.PodDisruptionBudget{}},
	}
}

// newExporter returns the exporter of traces, nil if tracing is not configured.
func newExporter(ctx context.Context, o *options) (*tracing.Exporter, error) {
	if o.tracingConfigFile == "" {
		return nil, nil //nolint:nilnil // a nil Exporter is valid
	}
	config, err := tracing.ReadConfig(o.tracingConfigFile, featureGates)
	if err != nil {
		return nil, err
	}
	return tracing.NewExporter(ctx, config, version)
}

// itself returns the Cluster of a request for a Cluster.
func itself(request ctrl.Request) types.NamespacedName { return request.NamespacedName }

// clusterOfMachine returns a function that returns the Cluster of a Machine. Deleted Machines of a namespace share an empty name.
func clusterOfMachine(ctx context.Context, reader client.Reader) func(ctrl.Request) types.NamespacedName {
	return func(request ctrl.Request) types.NamespacedName {
		machine := &clusterv1.Machine{}
		_ = reader.Get(ctx, request.NamespacedName, machine, client.UnsafeDisableDeepCopy)
		return types.NamespacedName{Namespace: request.Namespace, Name: machine.Spec.ClusterName}
	}
}

// clusterOfDeployment is like clusterOfMachine, for MachineDeployments.
func clusterOfDeployment(ctx context.Context, reader client.Reader) func(ctrl.Request) types.NamespacedName {
	return func(request ctrl.Request) types.NamespacedName {
		deployment := &clusterv1.MachineDeployment{}
		_ = reader.Get(ctx, request.NamespacedName, deployment, client.UnsafeDisableDeepCopy)
		return types.NamespacedName{Namespace: request.Namespace, Name: deployment.Spec.ClusterName}
	}
}

// cachedByObject returns the kinds of workload clusters of which the cache holds only some objects or fields.
func cachedByObject() map[client.Object]ctrlcache.ByObject {
	selected := deployment.Surging()
	selected[&corev1.Node{}] = ctrlcache.ByObject{Transform: workload.TrimNode}
	return selected
}
