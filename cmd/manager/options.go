package main

import (
	"context"
	"fmt"
	"time"

	"github.com/pkg/errors"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/logs"
	logsv1 "k8s.io/component-base/logs/api/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/flags"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/capnm/cluster-api-node-maintenance/controllers/setaside"
)

// nodeAgentGate enables spec.nodeAgent of MachineDrainPolicies, which runs the node agent on Nodes: see exp/nodeagent.
const nodeAgentGate featuregate.Feature = "NodeAgent"

// featureGates are the feature gates of this provider and of the logging library.
var featureGates = newFeatureGates()

func newFeatureGates() featuregate.MutableVersionedFeatureGate {
	gates := featuregate.NewFeatureGate()
	if err := logsv1.AddFeatureGates(gates); err != nil {
		panic(err) // duplicate gates: a programming error
	}
	if err := gates.Add(map[featuregate.Feature]featuregate.FeatureSpec{
		nodeAgentGate: {Default: false, PreRelease: featuregate.Alpha},
	}); err != nil {
		panic(err) // as above
	}
	return gates
}

type options struct {
	// severalInProcess is set by the simulation, which runs several managers in its process. No flag sets it.
	severalInProcess bool
	// wrap is set by the simulation, to learn what is added to the manager. No flag sets it.
	wrap func(ctrl.Manager) ctrl.Manager

	leaderElection                            bool
	leaderElectionNamespace                   string
	leaseDuration, renewDeadline, retryPeriod time.Duration

	watchFilter, watchNamespace string
	nodeAgentImage              string
	syncPeriod                  time.Duration
	healthAddr, profilerAddr    string
	tracingConfigFile           string
	manager                     flags.ManagerOptions
	logs                        *logs.Options

	kubeAPIQPS, clusterCacheQPS, evictionQPS       float32
	kubeAPIBurst, clusterCacheBurst, evictionBurst int

	machineConcurrency, nodeMaintenanceConcurrency, evacuationConcurrency, evictorConcurrency, clusterCacheConcurrency int
}

func newOptions() *options { return &options{logs: logs.NewOptions()} }

// addFlags adds the flags. Where Cluster API's managers have the same flag, its name and default are theirs, but for the duration of the
// lease.
func (o *options) addFlags(fs *pflag.FlagSet) {
	logsv1.AddFlags(o.logs, fs)
	flags.AddManagerOptions(fs, &o.manager)
	featureGates.AddFlag(fs)

	fs.BoolVar(&o.leaderElection, "leader-elect", false, "Enable leader election, so that only one of several replicas of the manager is active.")
	fs.StringVar(&o.leaderElectionNamespace, "leader-elect-resource-namespace", "",
		"Namespace of the lease. Defaults to the namespace of the manager's Pod; required outside of a Pod.")
	// Longer than in Cluster API: client-go tries to release a lease that it could not renew, for as long as it tried to renew it, before the
	// leader exits.
	fs.DurationVar(&o.leaseDuration, "leader-elect-lease-duration", 25*time.Second, "Time without a renewal of the lease after which another replica can become "+
		"the leader. It must be longer than the retry period and twice the renew deadline.")
	fs.DurationVar(&o.renewDeadline, "leader-elect-renew-deadline", 10*time.Second, "Time for which the leader retries to renew its lease before it exits.")
	fs.DurationVar(&o.retryPeriod, "leader-elect-retry-period", 2*time.Second, "Interval between attempts to acquire or renew the lease.")

	fs.StringVar(&o.watchFilter, "watch-filter", "", fmt.Sprintf("Reconcile only objects whose label %s has this value. If empty, reconcile all objects.",
		clusterv1.WatchLabel))
	fs.StringVar(&o.nodeAgentImage, "node-agent-image", "", "Image of the node agent, for Clusters whose MachineDrainPolicy enables it (feature gate "+
		"NodeAgent). If empty, no node agent is installed, and those that are installed are removed.")
	fs.StringVar(&o.watchNamespace, "namespace", "", "Reconcile only objects in this namespace of the management cluster. If empty, reconcile objects in all "+
		"namespaces.")
	fs.DurationVar(&o.syncPeriod, "sync-period", 10*time.Minute, "The minimum interval at which all objects are reconciled, even without a change.")
	fs.StringVar(&o.healthAddr, "health-addr", ":9440", "Address of the health endpoint.")
	fs.StringVar(&o.profilerAddr, "profiler-address", "", "Address of the pprof profiler, for example localhost:6060. If empty, the profiler is off.")

	fs.StringVar(&o.tracingConfigFile, "tracing-config-file", "", "File with a TracingConfiguration, as for kube-apiserver. The manager then sends a trace of "+
		"each drain to an OpenTelemetry collector. If empty, tracing is off.")

	fs.Float32Var(&o.kubeAPIQPS, "kube-api-qps", 100, "Maximum requests per second to the management cluster.")
	fs.IntVar(&o.kubeAPIBurst, "kube-api-burst", 200, "Maximum burst of requests to the management cluster.")
	fs.Float32Var(&o.clusterCacheQPS, "clustercache-client-qps", 1000, "Maximum requests per second to each workload cluster, excluding evictions. API Priority "+
		"and Fairness does not limit those of a user in the group system:masters, such as the user of a kubeconfig that Cluster API generates. Set a lower "+
		"value if drains of many Machines slow down a small control plane.")
	fs.IntVar(&o.clusterCacheBurst, "clustercache-client-burst", 2000, "Maximum burst of requests to each workload cluster, excluding evictions.")
	fs.Float32Var(&o.evictionQPS, "eviction-qps", 100, "Maximum evictions per second in each workload cluster.")
	fs.IntVar(&o.evictionBurst, "eviction-burst", 200, "Maximum burst of evictions in each workload cluster.")

	fs.IntVar(&o.machineConcurrency, "machine-concurrency", 50, "Number of Machines to reconcile concurrently.")
	fs.IntVar(&o.nodeMaintenanceConcurrency, "nodemaintenance-concurrency", 50,
		"Number of NodeMaintenances to reconcile concurrently, over all workload clusters.")
	fs.IntVar(&o.evacuationConcurrency, "evacuation-concurrency", 100, "Number of Evacuations to reconcile concurrently, over all workload clusters.")
	fs.IntVar(&o.evictorConcurrency, "evictor-concurrency", 50, "Number of workload clusters in which to evict concurrently.")
	fs.IntVar(&o.clusterCacheConcurrency, "clustercache-concurrency", 100, "Number of workload clusters to connect to concurrently.")
}

// cacheOptions returns the options of the cache of the management cluster. unread gets the objects that cannot be decoded.
func (o *options) cacheOptions(config *rest.Config, scheme *runtime.Scheme, unread *setaside.Objects) (ctrlcache.Options, error) {
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return ctrlcache.Options{}, errors.Wrap(err, "creating an HTTP client")
	}
	options := ctrlcache.Options{
		NewInformer: unread.NewInformer(setaside.Source{Config: config, HTTPClient: httpClient, Scheme: scheme, Namespace: o.watchNamespace, Kinds: setAsideKinds}),
		DefaultWatchErrorHandler: func(ctx context.Context, reflector *toolscache.Reflector, err error) {
			ctrl.Log.WithName("cache").Error(err, "Failed to list or watch objects of the management cluster", "kind", reflector.TypeDescription())
			toolscache.DefaultWatchErrorHandler(ctx, reflector, err)
		},
		SyncPeriod: &o.syncPeriod, DefaultTransform: ctrlcache.TransformStripManagedFields(),
	}
	if o.watchNamespace != "" {
		options.DefaultNamespaces = map[string]ctrlcache.Config{o.watchNamespace: {}}
	}
	return options, nil
}
