// Package kubelet asks the kubelet of the node what only it knows.
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

	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/manifests"
)

// limit bounds an answer: some hundred Pods are a few megabytes.
const limit = 32 << 20

// Client of the kubelet of this node.
type Client struct{ http *http.Client }

// New returns a client that presents the token in this file. The kubelet is on this node's loopback, and its certificate is
// often one that it has signed itself.
func New(tokenFile string) *Client {
	base := &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
		DisableKeepAlives: true,                                  // it is asked once a minute
	}
	withToken := transport.NewCachedFileTokenSource(tokenFile)
	return &Client{http: &http.Client{Timeout: 5 * time.Second, Transport: transport.TokenSourceWrapTransport(withToken)(base)}}
}

// EndsPods says whether the kubelet has a graceful shutdown of its own.
func (c *Client) EndsPods(ctx context.Context, port int32) (bool, error) {
	var answer struct {
		Config struct {
			ShutdownGracePeriod              metav1.Duration   `json:"shutdownGracePeriod"`
			ShutdownGracePeriodByPodPriority []json.RawMessage `json:"shutdownGracePeriodByPodPriority"`
		} `json:"kubeletconfig"`
	}
	err := c.get(ctx, port, "/configz", &answer)
	return answer.Config.ShutdownGracePeriod.Duration > 0 || len(answer.Config.ShutdownGracePeriodByPodPriority) > 0, err
}

// Priorities returns the priorities of the Pods on the node, by UID. The kubelet knows static Pods as their manifests have them, in
// which the priority isn't resolved.
func (c *Client) Priorities(ctx context.Context, port int32) (map[string]int32, error) {
	pods := &corev1.PodList{}
	if err := c.get(ctx, port, "/pods", pods); err != nil {
		return nil, err
	}
	priorities := map[string]int32{}
	for i := range pods.Items {
		priorities[string(pods.Items[i].UID)] = manifests.Priority(&pods.Items[i])
	}
	return priorities, nil
}

func (c *Client) get(ctx context.Context, port int32, path string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d%s", port, path), nil)
	if err != nil {
		return errors.Wrapf(err, "asking the kubelet for %s", path)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return errors.Wrapf(err, "asking the kubelet for %s", path)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return errors.Errorf("asking the kubelet for %s: %s", path, response.Status)
	}
	return errors.Wrapf(json.NewDecoder(io.LimitReader(response.Body, limit)).Decode(into), "parsing the kubelet's %s", path)
}
