// Package kubelet is a client for the API of the node's kubelet.
package kubelet

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/transport"

	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/manifests"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/shutdown"
)

// maxSidecars limits what the agent keeps of a Pod. The sidecars that start after the first ones terminate with the other containers.
const maxSidecars = 10

// Client is a client for the kubelet of this node.
type Client struct{ http *http.Client }

// timeout is the timeout of a connection and of a request.
const timeout = 5 * time.Second

// New returns a client that authenticates with the token in this file. It does not verify the kubelet's certificate, which is often
// self-signed. It connects to the loopback address only, and sends its token only to a process of the user as whom the agent runs, which is
// root (S93).
func New(tokenFile string) *Client {
	base := &http.Transport{
		DialTLSContext:    dialOwnUser,
		DisableKeepAlives: true, // there is one request a minute
	}
	withToken := transport.NewCachedFileTokenSource(tokenFile)
	return &Client{http: &http.Client{
		Timeout: timeout, Transport: transport.TokenSourceWrapTransport(withToken)(base),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the other server would get the token
	}}
}

// HasGracefulShutdown returns whether the kubelet's own graceful shutdown is enabled.
func (c *Client) HasGracefulShutdown(ctx context.Context, port int32) (bool, error) {
	var response struct {
		Config struct {
			ShutdownGracePeriod              metav1.Duration   `json:"shutdownGracePeriod"`
			ShutdownGracePeriodByPodPriority []json.RawMessage `json:"shutdownGracePeriodByPodPriority"`
		} `json:"kubeletconfig"`
	}
	err := c.get(ctx, port, "/configz", func(config *json.Decoder) error { return config.Decode(&response) })
	return response.Config.ShutdownGracePeriod.Duration > 0 || len(response.Config.ShutdownGracePeriodByPodPriority) > 0, err
}

// pod is what the agent needs to know of a Pod.
type pod struct {
	Metadata struct {
		UID string `json:"uid"`
	} `json:"metadata"`
	Spec struct {
		Priority          *int32 `json:"priority"`
		PriorityClassName string `json:"priorityClassName"`
		InitContainers    []struct {
			Name          string                        `json:"name"`
			RestartPolicy corev1.ContainerRestartPolicy `json:"restartPolicy"`
		} `json:"initContainers"`
	} `json:"spec"`
	Status struct {
		Phase corev1.PodPhase `json:"phase"`
	} `json:"status"`
}

// Pods returns the priorities and sidecars of the Pods on the node by UID, except for those that have finished: the kubelet reports them
// until they are deleted, and neither its maximum number of Pods nor the quota "pods" counts them. The kubelet reports static Pods without
// a resolved priority, so manifests.Priority resolves it.
func (c *Client) Pods(ctx context.Context, port int32) (map[string]shutdown.Known, error) {
	known := map[string]shutdown.Known{}
	err := c.get(ctx, port, "/pods", func(list *json.Decoder) error {
		return forEach(list, func(p *pod) {
			if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
				return
			}
			spec := corev1.PodSpec{Priority: p.Spec.Priority, PriorityClassName: p.Spec.PriorityClassName}
			known[p.Metadata.UID] = shutdown.Known{Priority: manifests.Priority(&corev1.Pod{Spec: spec}), Sidecars: sidecars(p)}
		})
	})
	if err != nil {
		return nil, err
	}
	return known, nil
}

// forEach calls do with each Pod of a list. It decodes one at a time: users decide how large their Pods are, so that a list may need more
// memory than the agent may use.
func forEach(list *json.Decoder, do func(*pod)) error {
	_, err := list.Token()
	for err == nil && list.More() {
		var key json.Token
		if key, err = list.Token(); err != nil || key == "items" {
			break
		}
		err = list.Decode(&json.RawMessage{})
	}
	items, tokenErr := list.Token()
	if err = cmp.Or(err, tokenErr); err != nil || items != json.Delim('[') { // null, or the end of a list without items
		return err
	}
	for list.More() {
		p := &pod{}
		if err := list.Decode(p); err != nil {
			return err
		}
		do(p)
	}
	_, err = list.Token() // fails if the list is incomplete
	return err
}

func sidecars(p *pod) []string {
	var names []string
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy == corev1.ContainerRestartPolicyAlways && len(names) < maxSidecars {
			names = append(names, c.Name)
		}
	}
	return names
}

func (c *Client) get(ctx context.Context, port int32, path string, decode func(*json.Decoder) error) error {
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
	return errors.Wrapf(decode(json.NewDecoder(response.Body)), "parsing the kubelet's %s", path)
}
