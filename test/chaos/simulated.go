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
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/clusterapi"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
	"github.com/capnm/cluster-api-node-maintenance/test/simulation/apiserver"
	"github.com/capnm/cluster-api-node-maintenance/test/simulation/models"
)

// StartManager runs our manager for a management cluster until the context ends.
type StartManager func(ctx context.Context, management *rest.Config) error

// simulated stands for real control planes: API servers in memory, and models of the other controllers. It runs in a bubble of
// testing/synctest, so that time passes only while nothing happens.
type simulated struct {
	start                StartManager
	management, workload *simulatedCluster
	random               *lockedRandom

	mu        sync.Mutex
	hosts     map[string]http.RoundTripper
	processes int
	current   *simulatedProcess
	// faults of the network, which outlast processes of the manager.
	workloadState, managementState state
	slow                           time.Duration
	lossy                          float64                  // the share of writes that lose their request or response
	stale                          map[string]time.Duration // how late watches deliver events, by resource
	paused                         map[bool]bool            // the models of the management cluster, or else of the workload cluster
	refuse                         map[bool]func(apiserver.Request) error
	reconciliations                []Reconciliations
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
	admin client.WithWatch

	mu       sync.Mutex
	versions []Version
	clock    Clock
	current  map[string]client.Object
}

func newSimulatedCluster(name string, random *rand.Rand) *simulatedCluster {
	c := &simulatedCluster{current: map[string]client.Object{}}
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
type simulatedRecording struct{ *simulated }

func (s *simulated) record() recorder { return simulatedRecording{s} }

// Stop implements recorder.
func (r simulatedRecording) Stop(context.Context) (*History, error) {
	r.mu.Lock()
	counts := slices.Clone(r.reconciliations)
	r.mu.Unlock()
	return &History{Replicas: 1, Workload: r.workload.side(), Management: r.management.side(), Reconciliations: counts}, nil
}

// newSimulatedWorld starts the simulation of a fleet with one workload cluster.
func newSimulatedWorld(ctx context.Context, seed uint64, start StartManager) (*world, error) {
	random := func(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }
	s := &simulated{
		start: start, random: &lockedRandom{random: random(1)},
		management: newSimulatedCluster("management", random(2)), workload: newSimulatedCluster("workload", random(3)),
		hosts: map[string]http.RoundTripper{}, stale: map[string]time.Duration{}, paused: map[bool]bool{}, refuse: map[bool]func(apiserver.Request) error{},
	}
	http.DefaultTransport = s // the transport of kubeconfigs without TLS
	for isManagement, each := range map[bool]*simulatedCluster{true: s.management, false: s.workload} {
		each.SetWatchDelay(s.staleness)
		each.SetRefusal(s.refusalIn(isManagement))
	}
	w := &world{simulated: s, detach: func() {}, cluster: kwok.NewCluster(clusterName).WithExternalControlPlane()}
	w.workload = &fleet.Workload{Client: s.workload.admin}
	w.fleet = &fleet.Fleet{Client: s.management.admin, Workloads: map[string]*fleet.Workload{"workload": w.workload}}
	manager := &managerProcess{name: "manager-0", begin: s.begin, lock: make(lock, 1)}
	w.managers = []*managerProcess{manager}
	if err := s.install(ctx); err != nil {
		return nil, err
	}
	s.startModels(ctx, random)
	go s.countReconciliations(ctx)
	policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: policyName}}
	if err := kwok.Create(ctx, w.fleet.Client, []client.Object{policy}, w.cluster.Objects()); err != nil {
		return nil, err
	}
	if err := manager.start(ctx); err != nil {
		return nil, err
	}
	return w, w.addMachines(ctx, keepers...)
}

// Outcome is what a simulated run has done.
type Outcome struct {
	Schedule Schedule
	// Log is what happened, a line for each thing.
	Log        []string
	Violations []string
	// Requests are those that the API servers have carried out, with their virtual times: a line for each.
	Requests []string
}

// Simulate plays the schedule of a seed in a simulation, with the manager that start runs. It is called in a bubble of testing/synctest.
// With parts, the schedule has only these, see Schedule.Only. An error means that the run could not be carried out.
func Simulate(ctx context.Context, seed uint64, parts []int, start StartManager) (Outcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	schedule := newSimulatedSchedule(seed)
	if parts != nil {
		schedule = schedule.Only(parts)
	}
	w, err := newSimulatedWorld(ctx, seed, start)
	if err != nil {
		return Outcome{Schedule: schedule}, errors.Wrap(err, "starting the simulation")
	}
	log, violations, err := w.play(ctx, schedule, simulatedFaults())
	w.managers[0].kill()
	return Outcome{schedule, log, violations, w.simulated.requests()}, err
}

// requests returns what both API servers have carried out over HTTP.
func (s *simulated) requests() []string {
	var lines []string
	for _, cluster := range []*simulatedCluster{s.management, s.workload} {
		for _, e := range cluster.Audit() {
			lines = append(lines, fmt.Sprintf("%s %s %s %d %x", e.Requested.UTC().Format("15:04:05.000000000"), e.Verb, e.URI, e.Code, sha256.Sum256(e.RequestObject)))
		}
	}
	slices.Sort(lines) // by time
	return lines
}

// newSimulatedSchedule generates the schedule of a seed. Since time costs nothing, half of them take three or ten times as long.
func newSimulatedSchedule(seed uint64) Schedule {
	s := NewSchedule(seed, simulatedFaults())
	s.Move = false
	factor := []int32{1, 1, 3, 10}[rand.New(rand.NewPCG(seed, 8)).IntN(4)]
	stretch := func(d *time.Duration) { *d = time.Duration(factor) * *d }
	stretch(&s.UserDrain)
	for i := range s.Drains {
		stretch(&s.Drains[i].At)
		s.Drains[i].Timeout *= factor
	}
	for i := range s.Faults {
		step := &s.Faults[i]
		stretch(&step.At)
		stretch(&step.For)
		if step.Fault == "manager-frozen" || strings.HasPrefix(step.Fault, "management-") { // the invariants consider requests up to lag after their cause
			step.For = min(step.For, lag-appearance)
		}
	}
	return s
}

// install creates what a management cluster has before a Cluster is created.
func (s *simulated) install(ctx context.Context) error {
	crds, err := installedCRDs()
	if err != nil {
		return err
	}
	for _, crd := range crds {
		if err := s.management.admin.Create(ctx, crd.DeepCopy()); err != nil {
			return errors.Wrapf(err, "creating CRD %s", crd.Name)
		}
	}
	for _, cluster := range []*simulatedCluster{s.management, s.workload} {
		for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem} {
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
	if s.current == nil || !s.current.started.Load() {
		late = 0 // see awaitStart
	}
	s.mu.Unlock()
	return s.random.between(time.Millisecond, 20*time.Millisecond) + s.random.between(0, late)
}

// startModels starts the models of the other controllers.
func (s *simulated) startModels(ctx context.Context, random func(uint64) *rand.Rand) {
	models.Start(ctx, s.workload.Server, models.Workload(models.WorkloadOptions{Random: random(4)}),
		models.Options{Random: random(5), Paused: s.isPaused(false)})
	core := s.workload.Client(fleet.CoreAgent)
	models.Start(ctx, s.management.Server, models.Management(models.ManagementOptions{
		Random: random(6), Workload: func(client.ObjectKey) client.Client { return core }, Server: func(client.ObjectKey) string { return workloadServer },
	}), models.Options{Random: random(7), Paused: s.isPaused(true)})
}

// isPaused returns whether a fault has stopped the models of a cluster.
func (s *simulated) isPaused(management bool) func(string) bool {
	return func(string) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.paused[management]
	}
}

// refusalIn returns which requests to a cluster are refused, and with which error.
func (s *simulated) refusalIn(management bool) func(apiserver.Request) error {
	return func(r apiserver.Request) error {
		s.mu.Lock()
		refuse := s.refuse[management]
		s.mu.Unlock()
		if refuse == nil {
			return nil
		}
		return refuse(r)
	}
}

// setRefusal sets which requests to a cluster are refused, and with which error.
func (s *simulated) setRefusal(management bool, refuse func(apiserver.Request) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse[management] = refuse
}
