package chaos

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// simulatedProcess is a run of our manager in the simulation.
type simulatedProcess struct {
	simulated *simulated
	terminate context.CancelFunc
	links     map[*simulatedCluster]*link
	started   atomic.Bool
	done      chan struct{}
	failure   error
	// components are what controller-runtime's manager runs.
	components []any
}

// begin starts a process of our manager.
func (s *simulated) begin(ctx context.Context, _ time.Duration) (process, error) {
	s.mu.Lock()
	s.processes++
	number := s.processes
	p := &simulatedProcess{simulated: s, links: map[*simulatedCluster]*link{}, done: make(chan struct{})}
	for _, cluster := range s.clusters() {
		p.links[cluster] = s.linkTo(cluster)
		s.hosts[cluster.hostFor(number)] = p.links[cluster]
	}
	for _, remote := range s.workloads {
		p.links[remote].await = p.awaitStart
	}
	s.hosts[s.management.hostFor(number)] = &ownKubeconfigs{p.links[s.management], s.workloads, number}
	s.running = append(s.running, p)
	s.mu.Unlock()
	running, terminate := context.WithCancel(context.WithoutCancel(ctx))
	p.terminate = terminate
	go func() {
		defer close(p.done)
		p.failure = s.start(running, &rest.Config{Host: "http://" + s.management.hostFor(number), Username: fleet.ManagerUser}, func(component any) {
			p.components = append(p.components, component)
		})
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeoutOfProcess, errors.New("the manager has not started in time"))
	defer cancel()
	for err := delay(ctx, starting/10); !p.hasStarted(); err = delay(ctx, starting/10) {
		if err == nil {
			select {
			case <-p.done:
				err = errors.Wrap(p.failure, "starting the manager")
			default:
			}
		}
		if err != nil {
			p.Kill()
			return nil, err
		}
	}
	return p, nil
}

// hasStarted returns whether all controllers of the manager have started. Each holds a mutex while it waits for its informers, and a
// controller that adds watches of a workload cluster would wait for the mutex: virtual time does not pass meanwhile.
func (p *simulatedProcess) hasStarted() bool {
	if !p.started.Load() && p.links[p.simulated.management].isQuiet(starting) {
		p.started.Store(true)
	}
	return p.started.Load()
}

const (
	// starting is longer than a controller takes to start after its informers have been answered.
	starting = time.Second
	// startTimeoutOfProcess is the time after which a manager is killed that cannot start.
	startTimeoutOfProcess = 10 * time.Second
)

// awaitStart delays requests to the workload cluster until the manager has started.
func (p *simulatedProcess) awaitStart(ctx context.Context) error {
	for !p.hasStarted() {
		if err := delay(ctx, starting/10); err != nil {
			return err
		}
	}
	return nil
}

// url is the server in the kubeconfig of a workload cluster.
func (c *simulatedCluster) url() string { return "http://" + c.name }

// hostFor returns the host name of a cluster for a process.
func (c *simulatedCluster) hostFor(process int) string { return fmt.Sprintf("%s.%d", c.name, process) }

// linkTo returns a link of a process, with the faults of the network. The caller holds the lock.
func (s *simulated) linkTo(cluster *simulatedCluster) *link {
	l := newLink(cluster.Transport())
	l.state = cluster.state
	l.latency = func() time.Duration {
		s.mu.Lock()
		slow := cluster.slow
		s.mu.Unlock()
		return s.random.between(time.Millisecond, 10*time.Millisecond) + slow
	}
	l.lose = func(r *http.Request) (request, response bool) {
		s.mu.Lock()
		share := s.lossy
		s.mu.Unlock()
		if s.strikes(r) {
			s.onKill()
			return false, true
		}
		if r.Method == http.MethodGet || share == 0 || s.random.Float64() >= share {
			return false, false
		}
		request = s.random.Float64() < 0.3
		return request, !request
	}
	return l
}

// countReconciliations records at regular intervals how often the controllers have reconciled. It reads only this metric: others measure
// the process.
func (s *simulated) countReconciliations(ctx context.Context) {
	total := reconcileTotal()
	for ; ctx.Err() == nil; _ = delay(ctx, busyPeriod) {
		metrics := make(chan prometheus.Metric)
		go func() {
			defer close(metrics)
			total.Collect(metrics)
		}()
		counts := map[string]float64{}
		for metric := range metrics {
			var m dto.Metric
			if err := metric.Write(&m); err != nil {
				continue
			}
			for _, label := range m.GetLabel() {
				if label.GetName() == "controller" {
					counts[label.GetValue()] += m.GetCounter().GetValue()
				}
			}
		}
		s.mu.Lock()
		s.reconciliations = append(s.reconciliations, Reconciliations{time.Now(), counts})
		s.mu.Unlock()
	}
}

// reconcileTotal returns controller-runtime's metric, which is internal: the registry tells which one has the name already.
func reconcileTotal() prometheus.Collector {
	same := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "controller_runtime_reconcile_total", Help: "Total number of reconciliations per controller",
	}, []string{"controller", "result"})
	var registered prometheus.AlreadyRegisteredError
	if err := metrics.Registry.Register(same); !errors.As(err, &registered) {
		panic(fmt.Sprintf("controller-runtime has another metric of reconciliations: %v", err))
	}
	return registered.ExistingCollector
}

// RoundTrip implements http.RoundTripper: it finds the link of a process by the name of the host.
func (s *simulated) RoundTrip(request *http.Request) (*http.Response, error) {
	s.mu.Lock()
	host := s.hosts[request.URL.Host]
	s.mu.Unlock()
	if host == nil {
		return nil, errors.Errorf("no such host: %s", request.URL.Host)
	}
	return host.RoundTrip(request)
}

// ownKubeconfigs gives a process its own host names of the workload clusters, so that its requests can be told from those of others.
type ownKubeconfigs struct {
	http.RoundTripper
	workloads []*simulatedCluster
	process   int
}

// RoundTrip implements http.RoundTripper.
func (o *ownKubeconfigs) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodGet || !strings.HasSuffix(request.URL.Path, "-kubeconfig") {
		return o.RoundTripper.RoundTrip(request)
	}
	request = request.Clone(request.Context())
	request.Header.Set("Accept", "application/json")
	response, err := o.RoundTripper.RoundTrip(request)
	if err != nil || response.StatusCode != http.StatusOK {
		return response, err
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	var secret map[string]any
	if err := json.Unmarshal(content, &secret); err != nil {
		return nil, err
	}
	data := secret["data"].(map[string]any)
	kubeconfig, err := base64.StdEncoding.DecodeString(data["value"].(string))
	if err != nil {
		return nil, err
	}
	for _, remote := range o.workloads {
		kubeconfig = bytes.ReplaceAll(kubeconfig, []byte(remote.url()+"\n"), []byte("http://"+remote.hostFor(o.process)+"\n"))
	}
	data["value"] = base64.StdEncoding.EncodeToString(kubeconfig)
	if content, err = json.Marshal(secret); err != nil {
		return nil, err
	}
	response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(content)), int64(len(content))
	response.Header.Set("Content-Length", fmt.Sprint(len(content)))
	return response, nil
}

// Kill implements process: its requests are neither carried out nor answered from now on. Its goroutines remain, as blocked as possible. If
// they were told to end, one of them could wait for a mutex that another one holds for ever.
func (p *simulatedProcess) Kill() {
	p.cutOff()
}

// cutOff cuts a process off from all clusters, until it is connected. Faults of the network do not concern it meanwhile.
func (p *simulatedProcess) cutOff() {
	s := p.simulated
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cluster := range s.clusters() {
		p.links[cluster].set(silent)
	}
	s.running = slices.DeleteFunc(s.running, func(other *simulatedProcess) bool { return other == p })
}

// connect connects a process that was cut off. It was not started after the running ones.
func (p *simulatedProcess) connect() {
	s := p.simulated
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cluster := range s.clusters() {
		p.links[cluster].set(cluster.state)
	}
	s.running = slices.Insert(s.running, 0, p)
}

// Stop implements process.
func (p *simulatedProcess) Stop() error {
	p.terminate()
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
	}
	p.Kill()
	return nil
}

// Signal implements process. A simulated process cannot be stopped: see isolateManager.
func (p *simulatedProcess) Signal(os.Signal) error {
	return errors.New("a simulated process gets no signals")
}

// Done implements process.
func (p *simulatedProcess) Done() <-chan struct{} { return p.done }

// Log implements process: it says why the process has ended. A panic ends the simulation.
func (p *simulatedProcess) Log() string {
	select {
	case <-p.done:
		return fmt.Sprint(p.failure)
	default:
		return ""
	}
}
