package tenants

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/pkg/errors"
	"k8s.io/client-go/rest"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

const (
	// UserPrefix is the prefix of the tenants' users in the audit log.
	UserPrefix = "tenant:"
	// proxyUser is the user that the API server allows to impersonate others.
	proxyUser     = "front-proxy-client"
	systemMasters = "system:masters"
)

// Host is the API server that tenants share.
type Host struct {
	*controlplane.ControlPlane

	listener net.Listener
	server   *http.Server

	lock    sync.RWMutex
	tenants map[string]*Tenant // by user
}

// NewHost starts the proxy of an API server. It runs until Stop.
func NewHost(cp *controlplane.ControlPlane) (*Host, error) {
	h := &Host{ControlPlane: cp, tenants: map[string]*Tenant{}}
	certificate, key, err := cp.SignServerCert()
	if err != nil {
		return nil, errors.Wrap(err, "issuing the certificate of the tenants' proxy")
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, errors.Wrap(err, "reading the certificate of the tenants' proxy")
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(cp.CAData())
	proxy, err := h.proxy()
	if err != nil {
		return nil, err
	}
	if h.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, errors.Wrap(err, "listening as the tenants' proxy")
	}
	h.server = &http.Server{
		Handler: proxy, ReadHeaderTimeout: time.Minute,
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert},
	}
	go func() { _ = h.server.ServeTLS(h.listener, "", "") }()
	return h, nil
}

// Stop stops the proxy and the links of its tenants, but not the API server.
func (h *Host) Stop() error {
	err := h.server.Close()
	h.lock.Lock()
	defer h.lock.Unlock()
	for _, tenant := range h.tenants {
		if tenant.link != nil {
			tenant.link.Close()
		}
	}
	return errors.Wrap(err, "stopping the tenants' proxy")
}

func (h *Host) port() int { return h.listener.Addr().(*net.TCPAddr).Port }

func (h *Host) proxy() (http.Handler, error) {
	config, err := h.ConfigFor(proxyUser)
	if err != nil {
		return nil, err
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, errors.Wrap(err, "connecting the tenants' proxy")
	}
	target, err := url.Parse(config.Host)
	if err != nil {
		return nil, errors.Wrap(err, "connecting the tenants' proxy")
	}
	proxy := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			user := r.In.TLS.PeerCertificates[0].Subject.CommonName
			r.Out.Header.Set("X-Remote-User", user)
			r.Out.Header.Set("X-Remote-Group", systemMasters)
			if tenant := h.tenantOf(user); tenant != nil && r.In.Method == http.MethodGet {
				tenant.narrow(r.Out.URL)
			}
		},
		// Ignore disconnected clients and a stopped API server.
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	return proxy, nil
}

func (h *Host) tenantOf(user string) *Tenant {
	h.lock.RLock()
	defer h.lock.RUnlock()
	return h.tenants[user]
}

// narrow restricts lists and watches of all objects to those of the tenant.
func (t *Tenant) narrow(to *url.URL) {
	parameter, selector := t.selectorFor(resourceOfAll(to.Path))
	if selector == "" {
		return
	}
	query := to.Query()
	if present := query.Get(parameter); present != "" {
		selector = present + "," + selector
	}
	query.Set(parameter, selector)
	to.RawQuery = query.Encode()
}

// resourceOfAll returns the resource of a request for all objects of a kind, or "" for other requests.
func resourceOfAll(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case parts[0] == "api" && len(parts) == 3: // api/v1/nodes
		return parts[2]
	case parts[0] == "apis" && len(parts) == 4: // apis/policy/v1/poddisruptionbudgets
		return parts[3]
	}
	return ""
}
