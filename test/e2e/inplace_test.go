package e2e

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	runtimecatalog "sigs.k8s.io/cluster-api/api/runtime/catalog"
	runtimehooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"
	runtimev1 "sigs.k8s.io/cluster-api/api/runtime/v1beta2"
	"sigs.k8s.io/cluster-api/exp/runtime/server"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/exp/inplace"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// updateInPlace changes the bootstrap configurations of all Machines, which an updater applies without replacing them.
func (w *workloadCluster) updateInPlace(ctx context.Context) {
	GinkgoHelper()
	stop := w.startUpdater(ctx)
	defer stop()
	policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: named(w.name, "all")}
	patch(ctx, policy, func() { policy.Spec.InPlaceUpdates = v1alpha1.InPlaceUpdatesDrain })
	machines, begin := w.machines(ctx, Default), len(w.events())
	pods := map[string][]corev1.Pod{}
	for _, worker := range w.workers(ctx, Default) {
		pods[worker.Name] = w.podsOn(ctx, Default, worker.Status.NodeRef.Name)
	}
	Expect(pods).To(ContainElement(Not(BeEmpty())))

	By("changing the MachineDeployment and the KubeadmControlPlane")
	const command = "echo updated"
	template := get(ctx, Default, management.client, &bootstrapv1.KubeadmConfigTemplate{ObjectMeta: named(w.name, w.name)})
	changed := &bootstrapv1.KubeadmConfigTemplate{ObjectMeta: named(w.name, w.name+"-updated"), Spec: template.Spec}
	changed.Spec.Template.Spec.PreKubeadmCommands = append(changed.Spec.Template.Spec.PreKubeadmCommands, command)
	Expect(management.client.Create(ctx, changed)).To(Succeed())
	deployment, controlPlane := w.machineDeployment(ctx), w.controlPlane(ctx)
	patch(ctx, deployment, func() {
		deployment.Spec.Rollout.Strategy.Type = clusterv1.RollingUpdateMachineDeploymentStrategyType
		deployment.Spec.Rollout.Strategy.RollingUpdate.MaxSurge, deployment.Spec.Rollout.Strategy.RollingUpdate.MaxUnavailable = ptr.To(intstr.FromInt32(0)),
			ptr.To(intstr.FromInt32(1))
		deployment.Spec.Template.Spec.Bootstrap.ConfigRef.Name = changed.Name
	})
	patch(ctx, controlPlane, func() {
		controlPlane.Spec.Rollout.Strategy.RollingUpdate.MaxSurge = ptr.To(intstr.FromInt32(0))
		controlPlane.Spec.KubeadmConfigSpec.PreKubeadmCommands = append(controlPlane.Spec.KubeadmConfigSpec.PreKubeadmCommands, command)
	})
	Eventually(func(g Gomega) {
		for i := range machines {
			machine := get(ctx, g, management.client, &clusterv1.Machine{ObjectMeta: named(w.name, machines[i].Name)})
			expectAvailable(g, *machine)
			g.Expect(machine.Status.Conditions).To(ContainElement(And(HaveField("Type", clusterv1.MachineUpToDateCondition), HaveField("Status", metav1.ConditionTrue))))
			g.Expect(machine.Annotations).NotTo(Or(HaveKey(clusterv1.UpdateInProgressAnnotation), HaveKey(v1alpha1.UpdateAllowedAnnotation)))
			node := get(ctx, g, w.Client, &corev1.Node{ObjectMeta: named("", machine.Status.NodeRef.Name)})
			g.Expect(node.Annotations).To(HaveKey(updateAnnotation))
			g.Expect(node.Spec.Unschedulable).To(BeFalse())
		}
	}, eventually, pace).Should(Succeed())
	Expect(w.machines(ctx, Default)).To(HaveLen(len(machines)), "no Machine is replaced")
	w.waitReady(ctx)

	By("the order of each update")
	events := w.events()[begin:]
	w.expectOursEvict(events)
	for _, machine := range machines {
		writes := events.Verb("patch", "update").Resource("nodes").Named("", machine.Status.NodeRef.Name).Succeeded()
		updates := writes.Where(func(e controlplane.Event) bool { return strings.Contains(string(e.RequestObject), updateAnnotation) })
		Expect(updates).To(HaveLen(1), "Machine %s is updated once", machine.Name)
		before, after := writes.Where(unschedulable("add")), writes.Where(unschedulable("remove"))
		Expect(before).NotTo(BeEmpty(), machine.Name)
		Expect(after).NotTo(BeEmpty(), machine.Name)
		Expect(before[0].Answered).To(BeTemporally("<", updates[0].Requested), machine.Name)
		Expect(after[0].Requested).To(BeTemporally(">", updates[0].Answered), machine.Name)
		for _, pod := range pods[machine.Name] {
			Expect(events.Verb("create").Resource("pods", "eviction").Named(pod.Namespace, pod.Name)).To(HaveLen(1))
			Expect(ended(events, pod)).To(BeTemporally("<", updates[0].Requested), "%s has terminated before the update", pod.Name)
		}
	}
	patch(ctx, policy, func() { policy.Spec.InPlaceUpdates = v1alpha1.InPlaceUpdatesIgnore })
}

// unschedulable selects the JSON patches with which our manager adds or removes the field.
func unschedulable(operation string) func(controlplane.Event) bool {
	return func(e controlplane.Event) bool {
		var patches []struct{ Op, Path string }
		_ = json.Unmarshal(e.RequestObject, &patches) // others write merge patches
		for _, patch := range patches {
			if patch.Op == operation && patch.Path == "/spec/unschedulable" {
				return true
			}
		}
		return false
	}
}

// updateAnnotation on a Node is written after the update.
const updateAnnotation = "test.capnm.dev/updated"

// startUpdater serves and registers a Runtime Extension that restarts the kubelet of a Machine to update it. The returned function ends it.
func (w *workloadCluster) startUpdater(ctx context.Context) (stop func()) {
	GinkgoHelper()
	gateway := w.gateway(ctx)
	listener, err := net.Listen("tcp", "0.0.0.0:0")
	Expect(err).NotTo(HaveOccurred())
	port := listener.Addr().(*net.TCPAddr).Port
	Expect(listener.Close()).To(Succeed())
	certificate, key, err := cert.GenerateSelfSignedCertKey(gateway, []net.IP{net.ParseIP(gateway)}, nil)
	Expect(err).NotTo(HaveOccurred())
	dir := GinkgoT().TempDir()
	for name, content := range map[string][]byte{"tls.crt": certificate, "tls.key": key} {
		Expect(os.WriteFile(filepath.Join(dir, name), content, 0o600)).To(Succeed())
	}

	catalog := runtimecatalog.New()
	Expect(runtimehooksv1.AddToCatalog(catalog)).To(Succeed())
	extension, err := server.New(server.Options{Catalog: catalog, Host: "0.0.0.0", Port: port, CertDir: dir})
	Expect(err).NotTo(HaveOccurred())
	for _, handler := range []server.ExtensionHandler{
		{Hook: runtimehooksv1.CanUpdateMachine, Name: "can-update-machine", HandlerFunc: canUpdateMachine},
		{Hook: runtimehooksv1.CanUpdateMachineSet, Name: "can-update-machine-set", HandlerFunc: canUpdateMachineSet},
		{Hook: runtimehooksv1.UpdateMachine, Name: "update-machine", HandlerFunc: w.updateMachine},
	} {
		Expect(extension.AddExtensionHandler(handler)).To(Succeed())
	}
	serving, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- extension.Start(serving) }()
	config := &runtimev1.ExtensionConfig{
		ObjectMeta: named("", "updater"),
		Spec: runtimev1.ExtensionConfigSpec{ClientConfig: runtimev1.ClientConfig{
			URL: "https://" + net.JoinHostPort(gateway, strconv.Itoa(port)), CABundle: certificate,
		}},
	}
	Expect(management.client.Create(ctx, config)).To(Succeed())
	Eventually(func(g Gomega) {
		g.Expect(get(ctx, g, management.client, config).Status.Handlers).To(HaveLen(3), "%v", config.Status.Conditions)
	}, eventually, pace).Should(Succeed())
	return func() {
		Expect(management.client.Delete(ctx, config)).To(Succeed())
		cancel()
		if err := <-done; err != nil && !errors.Is(err, http.ErrServerClosed) {
			Expect(err).NotTo(HaveOccurred())
		}
	}
}

// gateway returns the address under which the nodes reach this process.
func (w *workloadCluster) gateway(ctx context.Context) string {
	GinkgoHelper()
	for _, address := range strings.Fields(run(ctx, "docker", "network", "inspect", "kind", "--format", "{{range .IPAM.Config}}{{.Gateway}} {{end}}")) {
		if ip := net.ParseIP(address); ip != nil && ip.To4() != nil {
			return address
		}
	}
	Fail("the network kind has no gateway")
	return ""
}

// canUpdateMachine says that a bootstrap configuration can be changed in place.
func canUpdateMachine(_ context.Context, request *runtimehooksv1.CanUpdateMachineRequest, response *runtimehooksv1.CanUpdateMachineResponse) {
	response.SetStatus(runtimehooksv1.ResponseStatusSuccess)
	response.BootstrapConfigPatch = specOf(request.Desired.BootstrapConfig)
}

func canUpdateMachineSet(_ context.Context, request *runtimehooksv1.CanUpdateMachineSetRequest, response *runtimehooksv1.CanUpdateMachineSetResponse) {
	response.SetStatus(runtimehooksv1.ResponseStatusSuccess)
	response.BootstrapConfigTemplatePatch = specOf(request.Desired.BootstrapConfigTemplate)
}

// specOf returns the patch that sets the spec of an object.
func specOf(desired runtime.RawExtension) runtimehooksv1.Patch {
	var object struct {
		Spec json.RawMessage `json:"spec"`
	}
	if err := json.Unmarshal(desired.Raw, &object); err != nil {
		return runtimehooksv1.Patch{}
	}
	content, _ := json.Marshal(object)
	return runtimehooksv1.Patch{PatchType: runtimehooksv1.JSONMergePatchType, Patch: content}
}

// updateMachine restarts the kubelet when the Node is drained.
func (w *workloadCluster) updateMachine(ctx context.Context, request *runtimehooksv1.UpdateMachineRequest, response *runtimehooksv1.UpdateMachineResponse) {
	if !inplace.Await(ctx, management.client, request, response) {
		return
	}
	response.SetStatus(runtimehooksv1.ResponseStatusSuccess)
	if err := w.restartKubelet(ctx, client.ObjectKeyFromObject(&request.Desired.Machine)); err != nil {
		response.SetStatus(runtimehooksv1.ResponseStatusFailure)
		response.SetMessage(err.Error())
	}
}

func (w *workloadCluster) restartKubelet(ctx context.Context, key client.ObjectKey) error {
	machine, node := &clusterv1.Machine{}, &corev1.Node{}
	if err := management.client.Get(ctx, key, machine); err != nil {
		return errors.Wrapf(err, "getting Machine %s", key)
	}
	if output, err := exec.CommandContext(ctx, "docker", "exec", machine.Status.NodeRef.Name, "systemctl", "restart", "kubelet").CombinedOutput(); err != nil {
		return errors.Wrapf(err, "restarting the kubelet: %s", output)
	}
	if err := w.Get(ctx, client.ObjectKey{Name: machine.Status.NodeRef.Name}, node); err != nil {
		return errors.Wrap(err, "getting the Node")
	}
	before := node.DeepCopy()
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, updateAnnotation, "true")
	return errors.Wrap(w.Patch(ctx, node, client.MergeFrom(before)), "annotating the Node")
}
