package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/yaml"

	"github.com/capnm/cluster-api-node-maintenance/hack/tools/toolchain"
)

// images are those of Cluster API's managers, which images/build.sh builds.
var images = map[string]string{
	"capnm.dev/capi-core:e2e":                  "core",
	"capnm.dev/capi-kubeadm-bootstrap:e2e":     "bootstrap",
	"capnm.dev/capi-kubeadm-control-plane:e2e": "control plane",
	"capnm.dev/capd:e2e":                       "docker",
}

// repository is a directory of releases with the configuration of clusterctl.
type repository struct {
	dir  string
	capi string // Cluster API's version
	// version is that of our release.
	version string
}

func newRepository(ctx context.Context) *repository {
	GinkgoHelper()
	r := &repository{dir: filepath.Join(artifacts, "repository")}
	core, err := toolchain.Find("capi-core")
	Expect(err).NotTo(HaveOccurred())
	r.capi, err = core.Version(root)
	Expect(err).NotTo(HaveOccurred())
	capi, err := toolchain.ModuleDir(ctx, "controlplane", "sigs.k8s.io/cluster-api")
	Expect(err).NotTo(HaveOccurred())
	test, err := toolchain.ModuleDir(ctx, "capd", "sigs.k8s.io/cluster-api/test")
	Expect(err).NotTo(HaveOccurred())
	metadata := read(filepath.Join(capi, "metadata.yaml"))
	r.add(ctx, "cluster-api/"+r.capi+"/core-components.yaml", filepath.Join(capi, "core"), "capi-core", metadata)
	r.add(ctx, "bootstrap-kubeadm/"+r.capi+"/bootstrap-components.yaml", filepath.Join(capi, "bootstrap", "kubeadm"), "capi-kubeadm-bootstrap", metadata)
	r.add(ctx, "control-plane-kubeadm/"+r.capi+"/control-plane-components.yaml", filepath.Join(capi, "controlplane", "kubeadm"), "capi-kubeadm-control-plane",
		metadata)
	r.add(ctx, "infrastructure-docker/"+r.capi+"/infrastructure-components-development.yaml", filepath.Join(test, "infrastructure", "docker"), "capd", metadata)

	r.version = r.addRelease(filepath.Join(root, "out", "release"))
	certManager := r.addCertManager(ctx)

	r.write("cluster-api/clusterctl.yaml", fmt.Sprintf(`
providers:
- {name: cluster-api, type: CoreProvider, url: "file://%[1]s/cluster-api/%[2]s/core-components.yaml"}
- {name: kubeadm, type: BootstrapProvider, url: "file://%[1]s/bootstrap-kubeadm/%[2]s/bootstrap-components.yaml"}
- {name: kubeadm, type: ControlPlaneProvider, url: "file://%[1]s/control-plane-kubeadm/%[2]s/control-plane-components.yaml"}
- {name: docker, type: InfrastructureProvider, url: "file://%[1]s/infrastructure-docker/%[2]s/infrastructure-components-development.yaml"}
- {name: node-maintenance, type: RuntimeExtensionProvider, url: "file://%[1]s/runtime-extension-node-maintenance/%[3]s/runtime-extension-components.yaml"}
cert-manager:
  url: "file://%[1]s/cert-manager/%[4]s/cert-manager.yaml"
  version: %[4]s
`, r.dir, r.capi, r.version, certManager))
	return r
}

// managerImage is the name and the version of the manager's image in the components of a release.
var managerImage = regexp.MustCompile(`image: (\S+):(v\S+)`)

// addRelease adds a release of this provider.
func (r *repository) addRelease(release string) (version string) {
	GinkgoHelper()
	components := read(filepath.Join(release, "runtime-extension-components.yaml"))
	image := managerImage.FindStringSubmatch(components)
	Expect(image).NotTo(BeEmpty())
	r.write("runtime-extension-node-maintenance/"+image[2]+"/runtime-extension-components.yaml", components)
	r.write("runtime-extension-node-maintenance/"+image[2]+"/metadata.yaml", read(filepath.Join(release, "metadata.yaml")))
	return image[2]
}

// add builds the components of a provider of Cluster API from its module.
func (r *repository) add(ctx context.Context, file, module, program, metadata string) {
	GinkgoHelper()
	components := run(ctx, tool("kustomize"), "build", filepath.Join(module, "config", "default"))
	r.write(file, withoutCertManager(components, "capnm.dev/"+program+":e2e"))
	r.write(filepath.Join(filepath.Dir(file), "metadata.yaml"), metadata)
}

// withoutCertManager sets the image of the manager, and replaces what cert-manager would do, whose programs cannot be built from Go
// modules: the certificate of the webhook server, and its CA in CRDs and webhook configurations.
func withoutCertManager(components, image string) string {
	GinkgoHelper()
	var all, kept []*unstructured.Unstructured
	decoder := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(components), 4096)
	for {
		object := &unstructured.Unstructured{}
		if decoder.Decode(object) != nil {
			break
		}
		all = append(all, object)
	}
	service, secret := webhookOf(all)
	host := service.GetName() + "." + service.GetNamespace() + ".svc"
	certificate, key, err := cert.GenerateSelfSignedCertKey(host, []net.IP{}, nil)
	Expect(err).NotTo(HaveOccurred())
	for _, object := range all {
		switch object.GetKind() {
		case "Certificate", "Issuer":
			continue
		case "CustomResourceDefinition":
			if _, found, _ := unstructured.NestedMap(object.Object, "spec", "conversion"); found {
				Expect(unstructured.SetNestedField(object.Object, base64.StdEncoding.EncodeToString(certificate), "spec", "conversion", "webhook", "clientConfig",
					"caBundle")).To(Succeed())
			}
		case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
			for _, webhook := range slice(object.Object, "webhooks") {
				Expect(unstructured.SetNestedField(webhook, base64.StdEncoding.EncodeToString(certificate), "clientConfig", "caBundle")).To(Succeed())
			}
		case "Deployment":
			template, _, err := unstructured.NestedFieldNoCopy(object.Object, "spec", "template", "spec")
			Expect(err).NotTo(HaveOccurred())
			for _, container := range slice(template.(map[string]any), "containers") {
				container["image"], container["imagePullPolicy"] = image, "Never"
				delete(container, "command")
			}
		}
		kept = append(kept, object)
	}
	kept = append(kept, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": map[string]any{"name": secret, "namespace": service.GetNamespace()},
		"data": map[string]any{"tls.crt": base64.StdEncoding.EncodeToString(certificate), "tls.key": base64.StdEncoding.EncodeToString(key)},
	}})
	var result bytes.Buffer
	for _, object := range kept {
		content, err := yaml.Marshal(object.Object)
		Expect(err).NotTo(HaveOccurred())
		result.WriteString("---\n" + string(content))
	}
	return result.String()
}

// webhookOf returns the Service of the webhooks, and the name of the Secret with their certificate.
func webhookOf(objects []*unstructured.Unstructured) (service *unstructured.Unstructured, secret string) {
	GinkgoHelper()
	for _, object := range objects {
		switch object.GetKind() {
		case "Service":
			service = object
		case "Certificate":
			secret, _, _ = unstructured.NestedString(object.Object, "spec", "secretName")
		}
	}
	Expect(service).NotTo(BeNil())
	Expect(secret).NotTo(BeEmpty())
	return service, secret
}

// addCertManager adds cert-manager's CRDs, which clusterctl requires.
func (r *repository) addCertManager(ctx context.Context) (version string) {
	GinkgoHelper()
	module, err := toolchain.ModuleDir(ctx, "cert-manager", "github.com/cert-manager/cert-manager")
	Expect(err).NotTo(HaveOccurred())
	version = module[strings.LastIndex(module, "@")+1:]
	files, err := filepath.Glob(filepath.Join(module, "deploy", "crds", "*.yaml"))
	Expect(err).NotTo(HaveOccurred())
	components := "apiVersion: v1\nkind: Namespace\nmetadata: {name: cert-manager}\n"
	for _, file := range files {
		components += "\n---\n" + strings.TrimPrefix(read(file), "---\n")
	}
	r.write("cert-manager/"+version+"/cert-manager.yaml", components)
	return version
}

func (r *repository) write(file, content string) string {
	GinkgoHelper()
	path := filepath.Join(r.dir, file)
	Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
	Expect(os.WriteFile(path, []byte(content), 0o600)).To(Succeed())
	return path
}

func read(file string) string {
	GinkgoHelper()
	content, err := os.ReadFile(file)
	Expect(err).NotTo(HaveOccurred())
	return string(content)
}

// slice returns a list of maps of an object, which may be changed.
func slice(object map[string]any, field string) []map[string]any {
	list, _ := object[field].([]any)
	var maps []map[string]any
	for _, item := range list {
		if m, isMap := item.(map[string]any); isMap {
			maps = append(maps, m)
		}
	}
	return maps
}
