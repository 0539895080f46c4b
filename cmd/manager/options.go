package main

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/logs"
	logsv1 "k8s.io/component-base/logs/api/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/flags"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
)

// nodeAgentGate lets MachineDrainPolicies run the node agent on Nodes: see exp/nodeagent.
const nodeAgentGate featuregate.Feature = "NodeAgent"

// featureGates of this provider. The logging library registers its own.
var featureGates = newFeatureGates()

func newFeatureGates() featuregate.MutableVersionedFeatureGate {
	gates := featuregate.NewFeatureGate()
	if err := logsv1.AddFeatureGates(gates); err != nil {
		panic(err) // two gates of the same name: a mistake of the build
	}
	if err := gates.Add(map[featuregate.Feature]featuregate.FeatureSpec{
		nodeAgentGate: {Default: false, PreRelease: featuregate.Alpha},
	}); err != nil {
		panic(err) // likewise
	}
	return gates
}

type options struct {
	leaderElection                            bool
	leaderElectionNamespace                   string
	leaseDuration, renewDeadline, retryPeriod time.Duration

	watchFilter, watchNamespace string
	nodeAgentImage              string
	syncPeriod                  time.Duration
	healthAddr, profilerAddr    string
	manager                     flags.ManagerOptions
	logs                        *logs.Options

	kubeAPIQPS, clusterCacheQPS, evictionQPS       float32
	kubeAPIBurst, clusterCacheBurst, evictionBurst int

	machineConcurrency, nodeMaintenanceConcurrency, evacuationConcurrency, evictorConcurrency, clusterCacheConcurrency int
}

func newOptions() *options { return &options{logs: logs.NewOptions()} }

// addFlags adds the flags under the names, and with the defaults, that CAPI's managers have, as far as they have them.
func (o *options) addFlags(fs *pflag.FlagSet) {
	logsv1.AddFlags(o.logs, fs)
	flags.AddManagerOptions(fs, &o.manager)
	featureGates.AddFlag(fs)

	fs.BoolVar(&o.leaderElection, "leader-elect", false, "Enable leader election, so that only one of several managers is active.")
	fs.StringVar(&o.leaderElectionNamespace, "leader-elect-resource-namespace", "", "Namespace of the lease. Empty: that of the manager's Pod; outside of a Pod there is no default.")
	fs.DurationVar(&o.leaseDuration, "leader-elect-lease-duration", 15*time.Second, "Time after which a manager that isn't the leader takes over.")
	fs.DurationVar(&o.renewDeadline, "leader-elect-renew-deadline", 10*time.Second, "Time that the leader tries to renew its lease before it gives up.")
	fs.DurationVar(&o.retryPeriod, "leader-elect-retry-period", 2*time.Second, "Time between two tries to get or renew the lease.")

	fs.StringVar(&o.watchFilter, "watch-filter", "", fmt.Sprintf("Serve only objects whose label %s has this value. Empty: all.", clusterv1.WatchLabel))
	fs.StringVar(&o.nodeAgentImage, "node-agent-image", "", "Image of the node agent, for Clusters whose MachineDrainPolicy enables it (feature gate NodeAgent). Empty: none.")
	fs.StringVar(&o.watchNamespace, "namespace", "", "Serve only objects in this namespace. Empty: all.")
	fs.DurationVar(&o.syncPeriod, "sync-period", 10*time.Minute, "The least interval at which all objects are looked at again.")
	fs.StringVar(&o.healthAddr, "health-addr", ":9440", "Address of the health endpoint.")
	fs.StringVar(&o.profilerAddr, "profiler-address", "", "Address of the pprof profiler, for example localhost:6060. Empty: none.")

	fs.Float32Var(&o.kubeAPIQPS, "kube-api-qps", 100, "Requests a second to the management cluster.")
	fs.IntVar(&o.kubeAPIBurst, "kube-api-burst", 200, "Requests to the management cluster in one burst.")
	fs.Float32Var(&o.clusterCacheQPS, "clustercache-client-qps", 1000, "Requests a second to each workload cluster, evictions not counted. Its own priority and fairness limits it first.")
	fs.IntVar(&o.clusterCacheBurst, "clustercache-client-burst", 2000, "Requests to each workload cluster in one burst, evictions not counted.")
	fs.Float32Var(&o.evictionQPS, "eviction-qps", 100, "Evictions a second in each workload cluster.")
	fs.IntVar(&o.evictionBurst, "eviction-burst", 200, "Evictions in each workload cluster in one burst.")

	fs.IntVar(&o.machineConcurrency, "machine-concurrency", 50, "Machines to process at once.")
	fs.IntVar(&o.nodeMaintenanceConcurrency, "nodemaintenance-concurrency", 50, "NodeMaintenances to process at once, over all workload clusters.")
	fs.IntVar(&o.evacuationConcurrency, "evacuation-concurrency", 100, "Evacuations to process at once, over all workload clusters.")
	fs.IntVar(&o.evictorConcurrency, "evictor-concurrency", 50, "Workload clusters in which to evict at once.")
	fs.IntVar(&o.clusterCacheConcurrency, "clustercache-concurrency", 100, "Workload clusters to connect to at once.")
}

func (o *options) cacheOptions() ctrlcache.Options {
	options := ctrlcache.Options{SyncPeriod: &o.syncPeriod, DefaultTransform: ctrlcache.TransformStripManagedFields()}
	if o.watchNamespace != "" {
		options.DefaultNamespaces = map[string]ctrlcache.Config{o.watchNamespace: {}}
	}
	return options
}
