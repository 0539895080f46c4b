// Package kubelet is a client for the API of the node's kubelet.
package kubelet

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/transport"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/manifests"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/shutdown"
)

// limit is the maximum size of a response in bytes. A list of some hundred Pods takes a few megabytes.
const limit = 32 << 20

// Client is a client for the kubelet of this node.
type Client struct{ http *http.Client }

// New returns a client that authenticates with the token in this file. It does not verify the kubelet's certificate, which is often
// self-signed; it connects to the loopback address only.
func New(tokenFile string) *Client {
	base := &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
		DisableKeepAlives: true,                                  // there is one request a minute
	}
	withToken := transport.NewCachedFileTokenSource(tokenFile)
	return &Client{http: &http.Client{Timeout: 5 * time.Second, Transport: transport.TokenSourceWrapTransport(withToken)(base)}}
}

// HasGracefulShutdown returns whether the kubelet's own graceful shutdown is enabled.
func (c *Client) HasGracefulShutdown(ctx context.Context, port int32) (bool, error) {
	var response struct {
		Config struct {
			ShutdownGracePeriod              metav1.Duration   `json:"shutdownGracePeriod"`
			ShutdownGracePeriodByPodPriority []json.RawMessage `json:"shutdownGracePeriodByPodPriority"`
		} `json:"kubeletconfig"`
	}
	err := c.get(ctx, port, "/configz", &response)
	return response.Config.ShutdownGracePeriod.Duration > 0 || len(response.Config.ShutdownGracePeriodByPodPriority) > 0, err
}

// Pods returns the priorities and sidecars of the Pods on the node by UID. The kubelet reports static Pods without a resolved priority, so
// manifests.Priority resolves it.
func (c *Client) Pods(ctx context.Context, port int32) (map[string]shutdown.Known, error) {
	pods := &corev1.PodList{}
	if err := c.get(ctx, port, "/pods", pods); err != nil {
		return nil, err
	}
	known := map[string]shutdown.Known{}
	for i := range pods.Items {
		pod := &pods.Items[i]
		known[string(pod.UID)] = shutdown.Known{Priority: manifests.Priority(pod), Sidecars: sidecars(pod)}
	}
	return known, nil
}

func sidecars(pod *corev1.Pod) []string {
	var names []string
	for _, c := range pod.Spec.InitContainers {
		if ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways {
			names = append(names, c.Name)
		}
	}
	return names
}

func (c *Client) get(ctx context.Context, port int32, path string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d%s", port, path), nil)
	if err != nil {
		return errors.Wrapf(err, "requesting %s from the kubelet", path)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return errors.Wrapf(err, "requesting %s from the kubelet", path)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return errors.Errorf("requesting %s from the kubelet: %s", path, response.Status)
	}
	return errors.Wrapf(json.NewDecoder(io.LimitReader(response.Body, limit)).Decode(into), "parsing the kubelet's %s", path)
}
