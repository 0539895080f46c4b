package chaos

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/clusterapi"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
	"github.com/capnm/cluster-api-node-maintenance/test/simulation/apiserver"
	"github.com/capnm/cluster-api-node-maintenance/test/simulation/models"
)

// StartManager runs our manager for a management cluster until the context ends. It passes each component that it adds to
// controller-runtime's manager.
type StartManager func(ctx context.Context, management *rest.Config, added func(component any)) error

// simulated stands for real control planes: API servers in memory, and models of the other controllers. It runs in a bubble of
// testing/synctest, so that time passes only while nothing happens.
type simulated struct {
	start      StartManager
	management *simulatedCluster
	workloads  []*simulatedCluster
	random     *lockedRandom

	// mu protects all that follows, and the faults of the clusters.
	mu              sync.Mutex
	hosts           map[string]http.RoundTripper
	processes       int
	running         []*simulatedProcess      // more than one while an old leader still writes
	lossy           float64                  // the share of writes that lose their request or response
	stale           map[string]time.Duration // how late watches deliver events, by resource
	reconciliations []Reconciliations
	faults          []InjectedFault // those that concern all Clusters
	clockOff        time.Duration   // how far the clock of an API server was wrong at most
	// onKill is called after the write that is killAfter writes away, 0: never.
	killAfter int
	onKill    func()
}

// lockedRandom is a source of random numbers that several goroutines use.
type lockedRandom struct {
	mu     sync.Mutex
	random *rand.Rand
}

func (r *lockedRandom) Float64() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.random.Float64()
}

// between returns a duration of a uniform distribution.
func (r *lockedRandom) between(from, until time.Duration) time.Duration {
	return from + time.Duration(r.Float64()*float64(until-from))
}

// simulatedCluster is an API server in memory and what it has stored.
type simulatedCluster struct {
	*apiserver.Server
	name  string // of its host
	admin client.WithWatch

	// Faults, which outlast processes of the manager: of the network between it and the cluster, of the models, and of the API server.
	state  state
	slow   time.Duration
	paused bool
	refuse func(apiserver.Request) error

	mu       sync.Mutex
	versions []Version
	clock    Clock
	current  map[string]client.Object
}

func newSimulatedCluster(name string, random *rand.Rand) *simulatedCluster {
	c := &simulatedCluster{name: name, current: map[string]client.Object{}}
	c.Server = apiserver.New(apiserver.Options{Name: name, Scheme: clusterapi.Scheme(), Random: random})
	c.OnChange(c.record)
	c.admin = c.Client("admin")
	return c
}

// record records a change. A time has one revision, the last one: what else was stored in the same instant counts as later than it.
func (c *simulatedCluster) record(change apiserver.Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if last := len(c.clock) - 1; last >= 0 && c.clock[last].From.Equal(now) {
		c.clock[last].Revision = change.Revision
	} else {
		c.clock = append(c.clock, Sample{From: now, Until: now.Add(1), Revision: change.Revision})
	}
	if !isRecorded(change.Key) {
		return
	}
	c.versions = append(c.versions, Version{Revision: change.Revision, Key: change.Key, Object: change.New})
	if change.New == nil {
		delete(c.current, change.Key)
	} else {
		c.current[change.Key] = change.New
	}
}

// stored returns the objects that are stored now.
func (c *simulatedCluster) stored() []Version {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []Version
	for _, key := range slices.Sorted(maps.Keys(c.current)) {
		all = append(all, Version{Key: key, Object: c.current[key]})
	}
	return all
}

func (c *simulatedCluster) side() Side {
	c.mu.Lock()
	defer c.mu.Unlock()
	clock := append(slices.Clone(c.clock), Sample{From: time.Now(), Until: time.Now().Add(time.Hour), Revision: c.clock[len(c.clock)-1].Revision})
	return Side{Audit: c.Audit(), Clock: clock, Versions: slices.Clone(c.versions)}
}

// simulatedRecording records everything from the beginning.
type simulatedRecording struct{ *world }

// Stop implements recorder.
func (r simulatedRecording) Stop(context.Context) (*History, error) {
	s := r.simulated
	s.mu.Lock()
	counts, faults, clockOff := slices.Clone(s.reconciliations), slices.Clone(s.faults), s.clockOff
	s.mu.Unlock()
	return &History{ClockOff: clockOff, Workload: r.remote.side(), Management: s.management.side().of(r.home()), Reconciliations: counts, Faults: faults}, nil
}

// of returns the record of the Clusters of a namespace.
func (s Side) of(namespace string) Side {
	s.Audit = s.Audit.Where(func(e controlplane.Event) bool { return e.Namespace == "" || e.Namespace == namespace })
	s.Versions = slices.DeleteFunc(slices.Clone(s.Versions), func(v Version) bool {
		for _, kind := range []string{clusterKeys, machineKeys, ruleKeys} {
			if rest, is := strings.CutPrefix(v.Key, kind); is {
				return !strings.HasPrefix(rest, namespace+"/")
			}
		}
		return false
	})
	return s
}

// newSimulated starts the simulation of a management cluster with our manager, and of its workload clusters.
func newSimulated(ctx context.Context, seed uint64, start StartManager, namespaces ...string) ([]*world, error) {
	random := func(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }
	s := &simulated{
		start: start, random: &lockedRandom{random: random(1)}, management: newSimulatedCluster("management", random(2)),
		hosts: map[string]http.RoundTripper{}, stale: map[string]time.Duration{},
	}
	http.DefaultTransport = s // the transport of kubeconfigs without TLS
	manager := &managerProcess{name: "manager-0", begin: s.begin, lock: make(lock, 1)}
	var worlds []*world
	for i, namespace := range namespaces {
		remote := newSimulatedCluster(fmt.Sprintf("workload-%d", i), random(uint64(10*i+3)))
		s.workloads = append(s.workloads, remote)
		w := &world{
			simulated: s, remote: remote, detach: func() {}, workload: &fleet.Workload{Client: remote.admin},
			cluster: kwok.NewCluster(clusterName).InNamespace(namespace).WithExternalControlPlane(),
		}
		w.fleet = &fleet.Fleet{
			Client:    namespaceClient{client.NewNamespacedClient(s.management.admin, namespace), s.management.admin},
			Workloads: map[string]*fleet.Workload{"workload": w.workload},
		}
		w.managers = []*managerProcess{manager}
		worlds = append(worlds, w)
	}
	for _, each := range s.clusters() {
		each.SetWatchDelay(s.staleness)
		each.SetRefusal(s.refusalOf(each))
	}
	if err := s.install(ctx, namespaces); err != nil {
		return nil, err
	}
	s.startModels(ctx, random, worlds)
	go s.countReconciliations(ctx)
	for _, w := range worlds {
		policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: w.home(), Name: policyName}}
		if err := kwok.Create(ctx, w.fleet.Client, []client.Object{policy}, w.cluster.Objects()); err != nil {
			return nil, err
		}
	}
	if err := manager.start(ctx); err != nil {
		return nil, err
	}
	for _, w := range worlds {
		if err := w.addMachines(ctx, keepers...); err != nil {
			return nil, err
		}
	}
	return worlds, nil
}

// namespaceClient is a client of the objects of a namespace. It watches those of all namespaces.
type namespaceClient struct {
	client.Client
	all client.WithWatch
}

// Watch implements client.WithWatch.
func (c namespaceClient) Watch(ctx context.Context, list client.ObjectList, options ...client.ListOption) (watch.Interface, error) {
	return c.all.Watch(ctx, list, options...)
}

// clusters returns all clusters.
func (s *simulated) clusters() []*simulatedCluster {
	return append([]*simulatedCluster{s.management}, s.workloads...)
}

// requests returns what the API servers have carried out over HTTP.
func (s *simulated) requests() []string {
	var lines []string
	for _, cluster := range s.clusters() {
		for _, e := range cluster.Audit() {
			lines = append(lines, fmt.Sprintf("%s %s %s %s %d %x", e.Requested.UTC().Format("15:04:05.000000000"), cluster.name, e.Verb, e.URI, e.Code,
				sha256.Sum256(e.RequestObject)))
		}
	}
	slices.Sort(lines) // by time
	return lines
}

// install creates what the clusters have before a Cluster is created.
func (s *simulated) install(ctx context.Context, more []string) error {
	crds, err := installedCRDs()
	if err != nil {
		return err
	}
	for _, crd := range crds {
		if err := s.management.admin.Create(ctx, crd.DeepCopy()); err != nil {
			return errors.Wrapf(err, "creating CRD %s", crd.Name)
		}
	}
	for _, cluster := range s.clusters() {
		for _, name := range append([]string{metav1.NamespaceSystem}, more...) {
			if err := cluster.admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
				return errors.Wrapf(err, "creating Namespace %s", name)
			}
		}
	}
	return nil
}

// installedCRDs returns the CRDs of the management cluster. Those of Cluster API have no schema: its defaults are not used.
var installedCRDs = sync.OnceValues(func() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	crds, err := kwok.CRDs()
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile("../../config/crd/bases/maintenance.cluster.x-k8s.io_machinedrainpolicies.yaml")
	if err != nil {
		return nil, errors.Wrap(err, "reading the CRD of policies")
	}
	policies := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(content, policies); err != nil {
		return nil, errors.Wrap(err, "decoding the CRD of policies")
	}
	crds = append(crds, policies)
	for kind, plural := range map[string]string{
		"Cluster": "clusters", "Machine": "machines", "MachineSet": "machinesets", "MachineDeployment": "machinedeployments", "MachinePool": "machinepools",
		"MachineDrainRule": "machinedrainrules", "MachineHealthCheck": "machinehealthchecks", "ClusterClass": "clusterclasses",
	} {
		crds = append(crds, withoutSchema(kind, plural))
	}
	slices.SortFunc(crds, func(a, b *apiextensionsv1.CustomResourceDefinition) int { return strings.Compare(a.Name, b.Name) })
	return crds, nil
})

func withoutSchema(kind, plural string) *apiextensionsv1.CustomResourceDefinition {
	group := clusterv1.GroupVersion.Group
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Singular: strings.ToLower(kind), Kind: kind, ListKind: kind + "List"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: clusterv1.GroupVersion.Version, Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
			}},
		},
	}
}

// staleness returns how late an event of a watch is delivered.
func (s *simulated) staleness(r apiserver.Request) time.Duration {
	s.mu.Lock()
	late := s.stale[r.Resource]
	if len(s.running) == 0 || !s.running[len(s.running)-1].started.Load() {
		late = 0 // see awaitStart
	}
	s.mu.Unlock()
	return s.random.between(time.Millisecond, 20*time.Millisecond) + s.random.between(0, late)
}

// startModels starts the models of the other controllers.
func (s *simulated) startModels(ctx context.Context, random func(uint64) *rand.Rand, worlds []*world) {
	cores, servers := map[client.ObjectKey]client.Client{}, map[client.ObjectKey]string{}
	for i, w := range worlds {
		stream := uint64(10*i + 4)
		models.Start(ctx, w.remote.Server, models.Workload(models.WorkloadOptions{Random: random(stream)}),
			models.Options{Random: random(stream + 1), Paused: s.isPaused(w.remote)})
		cores[w.cluster.Key()], servers[w.cluster.Key()] = w.remote.Client(fleet.CoreAgent), w.remote.url()
	}
	models.Start(ctx, s.management.Server, models.Management(models.ManagementOptions{
		Random:   random(6),
		Workload: func(cluster client.ObjectKey) client.Client { return cores[cluster] },
		Server:   func(cluster client.ObjectKey) string { return servers[cluster] },
	}), models.Options{Random: random(7), Paused: s.isPaused(s.management)})
}

// isPaused returns whether a fault has stopped the models of a cluster.
func (s *simulated) isPaused(c *simulatedCluster) func(string) bool {
	return func(string) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return c.paused
	}
}

// refusalOf returns which requests to a cluster are refused, and with which error.
func (s *simulated) refusalOf(c *simulatedCluster) func(apiserver.Request) error {
	return func(r apiserver.Request) error {
		s.mu.Lock()
		refuse := c.refuse
		s.mu.Unlock()
		if refuse == nil {
			return nil
		}
		return refuse(r)
	}
}

// setClockOff records that the clock of an API server is ahead, or behind if the offset is negative.
func (s *simulated) setClockOff(offset time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clockOff = max(s.clockOff, offset.Abs())
}

// setStaleness sets how late watches deliver the events of a kind.
func (s *simulated) setStaleness(kind string, late time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stale[kind] = late
}

// setRefusal sets which requests to a cluster are refused, and with which error.
func (s *simulated) setRefusal(c *simulatedCluster, refuse func(apiserver.Request) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.refuse = refuse
}
