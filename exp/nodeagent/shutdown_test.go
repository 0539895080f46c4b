package nodeagent

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/cluster"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/logind"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/shutdown"
)

// apiServer answers the requests of an agent on Node n1.
type apiServer struct {
	mu          sync.Mutex
	node        *corev1.Node
	maintenance *v1alpha1.NodeMaintenance
	// hangs means that it does not answer.
	hangs bool
	// proxy is the status code that a proxy answers in its place, 0 for none.
	proxy int
	// denial is what a webhook answers to the creation of a NodeMaintenance, nil if there is none.
	denial *metav1.Status
	// events are the messages of the events that the agent has created.
	events []string
	// conditions is how often the agent has written the condition of its Node. The server does not store it.
	conditions int
	// evacuations are the statuses of Evacuations that the agent has written, in the order of their resource versions.
	evacuations []v1alpha1.EvacuationStatus
}

func (s *apiServer) RoundTrip(request *http.Request) (*http.Response, error) {
	if s.hangs {
		<-request.Context().Done()
		return nil, request.Context().Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	isCondition := strings.HasSuffix(request.URL.Path, "/nodes/n1/status")
	if isCondition {
		s.conditions++
	}
	if s.proxy != 0 {
		return &http.Response{
			StatusCode: s.proxy, Header: http.Header{"Content-Type": {"text/html"}}, Body: io.NopCloser(strings.NewReader("<html>")), Request: request,
		}, nil
	}
	code, answer := http.StatusOK, any(s.maintenance)
	switch {
	case isCondition:
		answer = &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}}
	case strings.Contains(request.URL.Path, "/evacuations/"):
		e := &v1alpha1.Evacuation{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Evacuation"}}
		if err := json.NewDecoder(request.Body).Decode(e); err != nil {
			return nil, err
		}
		if e.ResourceVersion != strconv.Itoa(len(s.evacuations)) {
			return nil, errors.New("conflict")
		}
		s.evacuations = append(s.evacuations, e.Status)
		e.ResourceVersion, answer = strconv.Itoa(len(s.evacuations)), e
	case strings.HasSuffix(request.URL.Path, "/nodes"):
		list := &corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
		if s.node != nil {
			list.Items = append(list.Items, *s.node)
		}
		answer = list
	case strings.HasSuffix(request.URL.Path, "/events"):
		event := &corev1.Event{}
		if err := json.NewDecoder(request.Body).Decode(event); err != nil {
			return nil, err
		}
		s.events = append(s.events, event.Message)
		code, answer = http.StatusCreated, event
	case request.Method == http.MethodPost && s.denial != nil:
		code, answer = int(s.denial.Code), s.denial
	case request.Method == http.MethodPost:
		s.maintenance = &v1alpha1.NodeMaintenance{}
		if err := json.NewDecoder(request.Body).Decode(s.maintenance); err != nil {
			return nil, err
		}
		code, answer = http.StatusCreated, s.maintenance
	case s.maintenance == nil:
		code, answer = http.StatusNotFound, metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound,
			Details: &metav1.StatusDetails{Group: v1alpha1.GroupVersion.Group, Kind: "nodemaintenances", Name: shutdown.NamePrefix + "n1"},
		}
	case request.Method == http.MethodDelete:
		s.maintenance = nil
	case request.Method == http.MethodPatch:
		s.maintenance.Spec.Stage = v1alpha1.StageComplete
	}
	body, err := json.Marshal(answer)
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)), Request: request,
	}, err
}

func (s *apiServer) stage() v1alpha1.NodeMaintenanceStage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.maintenance.Spec.Stage
}

func (s *apiServer) set(m *v1alpha1.NodeMaintenance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.maintenance = m
}

func (s *apiServer) setProxy(code int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proxy = code
}

// agentOf returns an agent that has stored a shutdown.
func agentOf(t *testing.T, server *apiServer) *Agent {
	t.Helper()
	g := NewWithT(t)
	client, err := cluster.New(&rest.Config{Host: "http://api", Transport: server, QPS: -1}, "n1")
	g.Expect(err).NotTo(HaveOccurred())
	agent := &Agent{Node: "n1", State: State{Dir: t.TempDir()}, Keeper: &logind.Keeper{}, Cluster: client, nodeChanged: make(chan struct{}, 1)}
	agent.observed.Settings.Config = shutdown.Defaults()
	g.Expect(agent.State.SetShutdown(Shutdown{Since: uptime()})).To(Succeed())
	return agent
}

func nodeOf(uid types.UID) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: uid}}
}

func maintenanceOf(node *corev1.Node) *v1alpha1.NodeMaintenance {
	m := shutdown.Maintenance(node, shutdown.Defaults())
	m.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeMaintenance"}
	return m
}

func TestCancelledShutdown(t *testing.T) {
	t.Run("S61: a NodeMaintenance that the API server creates after the cancellation is completed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, server := NewWithT(t), &apiServer{}
			agent := agentOf(t, server)
			go func() {
				time.Sleep(2 * time.Second) // its request had timed out in the agent
				server.set(maintenanceOf(nodeOf("u1")))
			}()
			agent.completeAfterCancellation(t.Context())
			synctest.Wait()
			time.Sleep(time.Minute)
			g.Expect(server.stage()).To(Equal(v1alpha1.StageComplete))
			g.Expect(agent.State.Shutdown()).To(BeNil())
		})
	})
	t.Run("S61: the next shutdown does not wait for the completion, whose request the API server does not answer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, start := NewWithT(t), time.Now()
			agent := agentOf(t, &apiServer{hangs: true})
			agent.completeUnless(t.Context(), func() bool { return time.Since(start) >= 3100*time.Millisecond })
			g.Expect(time.Since(start)).To(BeNumerically("<", 3200*time.Millisecond))
			g.Expect(agent.State.Shutdown()).NotTo(BeNil(), "its NodeMaintenance is not complete")
		})
	})
	t.Run("S61, S63: an agent that no longer delays shutdowns completes the NodeMaintenance, too, but not before logind answers", func(t *testing.T) {
		g, server := NewWithT(t), &apiServer{maintenance: maintenanceOf(nodeOf("u1"))}
		agent, bus := agentOf(t, server), &systemBus{answers: map[string]any{}}
		agent.Keeper = keeperOn(t, bus) // DelayFor was not called: it takes no lock
		go agent.followShutdowns(t.Context())
		g.Consistently(agent.State.Shutdown, 300*time.Millisecond).ShouldNot(BeNil(), "the shutdown may still be in progress")
		bus.set("PreparingForShutdown", false)
		g.Eventually(agent.State.Shutdown).WithTimeout(time.Minute).Should(BeNil())
		g.Expect(server.stage()).To(Equal(v1alpha1.StageComplete))
	})
	t.Run("S61: the cancellation is observed also if logind did not answer when it had restarted", func(t *testing.T) {
		g, bus := NewWithT(t), &systemBus{answers: map[string]any{"PreparingForShutdown": true}}
		keeper := keeperOn(t, bus)
		g.Eventually(keeper.State).WithTimeout(time.Minute).Should(HaveField("Preparing", true))
		bus.set("PreparingForShutdown", nil)
		bus.signal("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "NameOwnerChanged", "org.freedesktop.login1", ":1.1", ":1.2")
		g.Eventually(keeper.State).WithTimeout(time.Minute).Should(And(HaveField("Preparing", true), HaveField("Known", false)))
		bus.set("PreparingForShutdown", false)
		g.Eventually(keeper.State).WithTimeout(time.Minute).Should(And(HaveField("Preparing", false), HaveField("Known", true)))
	})
	t.Run("S85: a signal of another client of the bus neither announces nor cancels a shutdown", func(t *testing.T) {
		g, bus := NewWithT(t), &systemBus{answers: map[string]any{"PreparingForShutdown": false}}
		keeper := keeperOn(t, bus)
		preparing := func() bool { return keeper.State().Preparing }
		signal := func(client string, prepare bool) {
			bus.signal(client, "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "PrepareForShutdown", prepare)
		}
		g.Eventually(keeper.State).WithTimeout(time.Minute).Should(HaveField("Known", true))
		signal(":1.9", true)
		g.Consistently(preparing, 300*time.Millisecond).Should(BeFalse())
		signal(loginOwner, true)
		g.Eventually(preparing).WithTimeout(time.Minute).Should(BeTrue())
		signal(":1.9", false)
		g.Consistently(preparing, 300*time.Millisecond).Should(BeTrue())
	})
	t.Run("S85: logind says whether a shutdown was announced, if the bus does not say who has sent the signal", func(t *testing.T) {
		g, bus := NewWithT(t), &systemBus{answers: map[string]any{
			"PreparingForShutdown": false, "GetNameOwner": refused("org.freedesktop.DBus.Error.LimitsExceeded"),
		}}
		keeper := keeperOn(t, bus)
		preparing := func() bool { return keeper.State().Preparing }
		g.Eventually(keeper.State).WithTimeout(time.Minute).Should(HaveField("Known", true))
		bus.signal(":1.9", "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "PrepareForShutdown", true)
		g.Consistently(preparing, 300*time.Millisecond).Should(BeFalse())
		bus.prepare(true)
		g.Eventually(preparing).WithTimeout(3 * time.Second).Should(BeTrue())
		bus.set("PreparingForShutdown", refused("org.freedesktop.DBus.Error.NoReply"))
		bus.signal(loginOwner, "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "PrepareForShutdown", false)
		g.Consistently(preparing, 300*time.Millisecond).Should(BeTrue())
		bus.set("PreparingForShutdown", false)
		g.Eventually(preparing).WithTimeout(time.Minute).Should(BeFalse())
	})
	t.Run("S85: the end of a shutdown is observed after its announcement, also if another client of the bus sends many signals", func(t *testing.T) {
		g, bus := NewWithT(t), &systemBus{answers: map[string]any{
			"PreparingForShutdown": false, "InhibitDelayMaxUSec": uint64(61_000_000), "Inhibit": func() any { return lock(t) }, "GetNameOwner": hangs{},
		}}
		processors := runtime.GOMAXPROCS(1) // goroutines that begin to wait for a channel one after the other then have another order
		t.Cleanup(func() { runtime.GOMAXPROCS(processors) })
		keeper := busKeeper(t, bus)
		keeper.DelayFor(time.Minute, "")
		go keeper.Run(t.Context())
		g.Eventually(keeper.State).WithTimeout(time.Minute).Should(HaveField("Held", true))
		signal := func(client string, preparing bool) {
			bus.signal(client, "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "PrepareForShutdown", preparing)
		}
		for range 20 { // the Keeper waits for the owner of the name, so these signals have to wait
			signal(":1.9", true)
		}
		for range 20 {
			signal(loginOwner, true)
			signal(loginOwner, false)
		}
		bus.set("GetNameOwner", nil)
		g.Eventually(func() int { return bus.calls("GetNameOwner") }).WithTimeout(time.Minute).Should(Equal(60))
		preparing := func() bool { return keeper.State().Preparing }
		g.Eventually(preparing).WithTimeout(time.Minute).Should(BeFalse())
		g.Consistently(preparing, 300*time.Millisecond).Should(BeFalse())
	})
	t.Run("S61: a shutdown without a NodeMaintenance is forgotten", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			agent := agentOf(t, &apiServer{})
			agent.completeAfterCancellation(t.Context())
			g.Expect(agent.State.Shutdown()).To(BeNil())
		})
	})
}

func TestConfigurationInShutdown(t *testing.T) {
	t.Run("S63: an agent that restarts in a shutdown keeps its configuration until logind says that none is in progress", func(t *testing.T) {
		g := NewWithT(t)
		agent := agentOf(t, &apiServer{})
		agent.Configs.File = filepath.Join(t.TempDir(), "config.yaml")
		g.Expect(os.WriteFile(agent.Configs.File, []byte("shutdownGracePeriod: 0s"), 0o600)).To(Succeed())
		agent.observeNode(t.Context(), nodeOf("u1"))
		g.Expect(agent.currentSettings().Enabled()).To(BeTrue())
		agent.Keeper = keeperOn(t, &systemBus{answers: map[string]any{"PreparingForShutdown": false}})
		g.Eventually(agent.Keeper.State).WithTimeout(time.Minute).Should(HaveField("Known", true))
		agent.observeNode(t.Context(), nodeOf("u1"))
		g.Expect(agent.currentSettings().Enabled()).To(BeFalse())
	})
}

func TestNodeMaintenanceOfAnotherNode(t *testing.T) {
	for name, tc := range map[string]struct {
		observed     *corev1.Node
		of, existing types.UID
		kept         bool
	}{
		"of an earlier Node is deleted":                                      {nodeOf("new"), "old", "new", false},
		"of an earlier Node is deleted before the Node was observed":         {nil, "old", "new", false},
		"of this Node is kept while the agent still observes an earlier one": {nodeOf("old"), "new", "new", true},
		"of a Node that no longer exists is kept: the manager deletes it":    {nil, "old", "", true},
		"of this Node is kept":                                               {nodeOf("new"), "new", "new", true},
	} {
		t.Run("S70: the NodeMaintenance "+name, func(t *testing.T) {
			g, server := NewWithT(t), &apiServer{maintenance: maintenanceOf(nodeOf(tc.of))}
			if tc.existing != "" {
				server.node = nodeOf(tc.existing)
			}
			agent := agentOf(t, server)
			agent.node = tc.observed
			m, err := agent.ensureMaintenance(t.Context(), server.maintenance)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(m != nil).To(Equal(tc.kept))
			g.Expect(server.maintenance != nil).To(Equal(tc.kept))
		})
	}
}

func TestProxy(t *testing.T) {
	t.Run("S76: the NodeMaintenance of a cancelled shutdown is completed after a proxy has answered with 404", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, server := NewWithT(t), &apiServer{maintenance: maintenanceOf(nodeOf("u1")), proxy: http.StatusNotFound}
			agent := agentOf(t, server)
			time.AfterFunc(time.Minute, func() { server.setProxy(0) })
			agent.completeAfterCancellation(t.Context())
			g.Expect(server.stage()).To(Equal(v1alpha1.StageComplete))
			g.Expect(agent.State.Shutdown()).To(BeNil())
		})
	})
	t.Run("S76: the NodeMaintenance is completed after the boot, although a proxy has answered with 404 at first", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, node := NewWithT(t), nodeOf("u1")
			node.Status.NodeInfo.BootID = "before"
			server := &apiServer{maintenance: maintenanceOf(node), proxy: http.StatusNotFound}
			agent := agentOf(t, server)
			g.Expect(agent.State.ClearShutdown()).To(Succeed())
			agent.node, agent.observed.Settings.CompleteOnBoot = nodeOf("u1"), true
			agent.node.Status.NodeInfo.BootID = "after"
			ctx, cancel := context.WithCancel(t.Context())
			go agent.completeAfterBoot(ctx)
			time.Sleep(time.Minute)
			server.setProxy(0)
			time.Sleep(time.Minute)
			cancel()
			g.Expect(server.stage()).To(Equal(v1alpha1.StageComplete))
		})
	})
	for code, answered := range map[int]bool{
		0: true, http.StatusForbidden: true, http.StatusNotFound: false, http.StatusInternalServerError: false, http.StatusBadGateway: false,
		http.StatusServiceUnavailable: false, http.StatusGatewayTimeout: false,
	} {
		t.Run("S5, S76: a 404 or a server error of a proxy is no answer of the API server: "+strconv.Itoa(code), func(t *testing.T) {
			_, err := agentOf(t, &apiServer{proxy: code}).Cluster.Maintenance(t.Context(), shutdown.NamePrefix+"n1")
			NewWithT(t).Expect(cluster.Answered(err)).To(Equal(answered), "%v", err)
		})
	}
}

func TestWebhookThatDeniesTheNodeMaintenance(t *testing.T) {
	for code, reason := range map[int]metav1.StatusReason{
		http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusConflict: metav1.StatusReasonAlreadyExists, http.StatusNotFound: "",
		http.StatusInternalServerError: metav1.StatusReasonInternalError, http.StatusGatewayTimeout: metav1.StatusReasonTimeout,
	} {
		t.Run("S98, E64: the NodeMaintenance of a shutdown is not created, and the API server has answered: "+strconv.Itoa(code), func(t *testing.T) {
			g, server := NewWithT(t), &apiServer{denial: &metav1.Status{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason,
				Message: `admission webhook "w" denied the request: no`,
			}}
			err := agentOf(t, server).Cluster.CreateMaintenance(t.Context(), maintenanceOf(nodeOf("u1")))
			g.Expect(err).To(MatchError(ContainSubstring("denied the request")))
			g.Expect(cluster.Answered(err)).To(BeTrue())
		})
	}
}
