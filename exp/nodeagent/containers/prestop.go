package containers

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/pkg/errors"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxBody limits how much of the response to a hook, or of the output of its command, is read. Its content is ignored.
const maxBody = 10 << 10

// runPreStop runs the preStop hook of a container, if it has one. It returns when the hook has ended, or at the end of the period.
func runPreStop(ctx context.Context, client runtimev1.RuntimeServiceClient, c *runtimev1.Container, period time.Duration) error {
	annotation, found := c.GetAnnotations()[preStopAnnotation]
	if !found {
		return nil
	}
	handler := &corev1.LifecycleHandler{}
	if err := json.Unmarshal([]byte(annotation), handler); err != nil {
		return errors.Wrapf(err, "parsing annotation %s", preStopAnnotation)
	}
	switch {
	case handler.Exec != nil:
		request := &runtimev1.ExecSyncRequest{ContainerId: c.GetId(), Cmd: handler.Exec.Command, Timeout: seconds(period)}
		response, err := client.ExecSync(ctx, request, grpc.MaxCallRecvMsgSize(maxBody))
		if status.Code(err) == codes.ResourceExhausted { // the command has run, and its output is ignored
			return nil
		}
		if err == nil && response.GetExitCode() != 0 {
			return errors.Errorf("the command exited with code %d", response.GetExitCode())
		}
		return errors.Wrap(err, "running the command")
	case handler.HTTPGet != nil:
		return errors.Wrap(sendHook(ctx, client, c, handler.HTTPGet), "sending the HTTP request")
	case handler.Sleep != nil:
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(handler.Sleep.Seconds) * time.Second):
		}
		return nil
	default:
		return errors.New("it is neither exec, httpGet nor sleep")
	}
}

// hooks sends the requests of hooks. Like the kubelet's client, it does not verify certificates.
var hooks = &http.Client{
	Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
		DisableKeepAlives: true, MaxResponseHeaderBytes: maxBody,
	},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func sendHook(ctx context.Context, client runtimev1.RuntimeServiceClient, c *runtimev1.Container, action *corev1.HTTPGetAction) error {
	port, err := portOf(c, action.Port)
	if err != nil {
		return err
	}
	host := action.Host
	if host == "" {
		if host, err = addressOf(ctx, client, c.GetPodSandboxId()); err != nil {
			return err
		}
	}
	target, err := url.Parse(action.Path)
	if err != nil {
		target = &url.URL{Path: action.Path}
	}
	target.Scheme = strings.ToLower(string(cmp.Or(action.Scheme, corev1.URISchemeHTTP)))
	target.Host = net.JoinHostPort(host, strconv.Itoa(port))
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return errors.Wrap(err, "creating the request")
	}
	request.Header.Set("User-Agent", "capnm-node-agent")
	for _, header := range action.HTTPHeaders {
		if http.CanonicalHeaderKey(header.Name) == "Host" {
			request.Host = header.Value
			continue
		}
		request.Header.Set(header.Name, header.Value)
	}
	response, err := hooks.Do(request)
	if err != nil {
		return errors.Wrap(err, "sending")
	}
	defer func() { _ = response.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, maxBody)) // as in the kubelet, every response means that the hook has run
	return nil
}

// portOf returns the number of a port, which may be the name of a port of the container.
func portOf(c *runtimev1.Container, port intstr.IntOrString) (int, error) {
	if port.Type == intstr.Int {
		return port.IntValue(), nil
	}
	var ports []corev1.ContainerPort
	if annotation := c.GetAnnotations()[portsAnnotation]; annotation != "" {
		if err := json.Unmarshal([]byte(annotation), &ports); err != nil {
			return 0, errors.Wrapf(err, "parsing annotation %s", portsAnnotation)
		}
	}
	for _, each := range ports {
		if each.Name == port.StrVal {
			return int(each.ContainerPort), nil
		}
	}
	number, err := strconv.Atoi(port.StrVal)
	return number, errors.Wrapf(err, "the container has no port %q", port.StrVal)
}

// addressOf returns the IP address of a Pod. The runtime reports none for a Pod in the network of the node, which is the agent's network,
// too.
func addressOf(ctx context.Context, client runtimev1.RuntimeServiceClient, sandbox string) (string, error) {
	response, err := client.PodSandboxStatus(ctx, &runtimev1.PodSandboxStatusRequest{PodSandboxId: sandbox})
	if err != nil {
		return "", errors.Wrap(err, "reading the address of the Pod")
	}
	switch sandbox := response.GetStatus(); {
	case sandbox.GetNetwork().GetIp() != "":
		return sandbox.GetNetwork().GetIp(), nil
	case sandbox.GetLinux().GetNamespaces().GetOptions().GetNetwork() == runtimev1.NamespaceMode_NODE:
		return "127.0.0.1", nil
	default:
		return "", errors.New("the Pod has no address")
	}
}
