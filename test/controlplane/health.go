package controlplane

import (
	"context"
	"net/http"
	"time"

	"github.com/pkg/errors"
	"k8s.io/client-go/rest"
)

// health checks whether components are ready.
type health struct {
	client *http.Client
	ports  *portBlock
}

func (c *ControlPlane) newHealth() (*health, error) {
	config, err := c.ConfigFor(harnessUser, systemMasters)
	if err != nil {
		return nil, err
	}
	config.Timeout = 5 * time.Second
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, errors.Wrap(err, "creating a client for health checks")
	}
	return &health{client: client, ports: c.ports}, nil
}

func (h *health) close() { h.client.CloseIdleConnections() }

// ready returns nil if a component reports that it is ready.
func (h *health) ready(ctx context.Context, component Component) error {
	scheme, path := "https", "/readyz"
	switch component {
	case Etcd, Kwok:
		scheme = "http"
	case ControllerManager:
		path = "/healthz" // It has no other endpoint.
	case APIServer, Scheduler:
	}
	return h.get(ctx, scheme+"://"+loopback(h.ports.of(component))+path)
}

func (h *health) defaultServiceAccount(ctx context.Context) error {
	return h.get(ctx, "https://"+loopback(h.ports.of(APIServer))+"/api/v1/namespaces/default/serviceaccounts/default")
}

func (h *health) get(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return errors.Wrap(err, "asking a component for its health")
	}
	response, err := h.client.Do(request)
	if err != nil {
		return errors.Wrap(err, "asking a component for its health")
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return errors.Errorf("GET %s: %s", url, response.Status)
	}
	return nil
}
