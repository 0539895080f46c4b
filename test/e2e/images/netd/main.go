// Command netd is the Pod network of the end-to-end tests, in place of kindnetd, whose module is not published. It writes a CNI
// configuration for the Pod range of its Node, and routes to the Pod ranges of the other Nodes, which must be on one layer 2 network.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const account = "/var/run/secrets/kubernetes.io/serviceaccount"

type nodes struct {
	Items []struct {
		Metadata struct{ Name string }
		Spec     struct{ PodCIDR string }
		Status   struct {
			Addresses []struct{ Type, Address string }
		}
	}
}

func main() {
	for {
		if err := sync(); err != nil {
			log.Print(err)
			time.Sleep(time.Second)
			continue
		}
		time.Sleep(3 * time.Second)
	}
}

func list() (nodes, error) {
	var found nodes
	ca, err := os.ReadFile(filepath.Join(account, "ca.crt"))
	if err != nil {
		return found, err
	}
	token, err := os.ReadFile(filepath.Join(account, "token"))
	if err != nil {
		return found, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Timeout: 5 * time.Second, Transport: transport}
	request, err := http.NewRequest(http.MethodGet, "https://"+os.Getenv("KUBERNETES_SERVICE_HOST")+":"+os.Getenv("KUBERNETES_SERVICE_PORT")+"/api/v1/nodes", nil)
	if err != nil {
		return found, err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	response, err := client.Do(request)
	if err != nil {
		return found, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return found, fmt.Errorf("listing Nodes: %s", response.Status)
	}
	return found, json.NewDecoder(response.Body).Decode(&found)
}

func sync() error {
	found, err := list()
	if err != nil {
		return err
	}
	for _, node := range found.Items {
		if node.Spec.PodCIDR == "" {
			continue
		}
		if node.Metadata.Name == os.Getenv("NODE_NAME") {
			if err := configure(node.Spec.PodCIDR); err != nil {
				return err
			}
			continue
		}
		for _, address := range node.Status.Addresses {
			if address.Type == "InternalIP" {
				if err := run("ip", "route", "replace", node.Spec.PodCIDR, "via", address.Address); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// configure also masquerades what Pods send to anything but Pods.
func configure(cidr string) error {
	masquerade := []string{"POSTROUTING", "-s", cidr, "!", "-d", os.Getenv("POD_SUBNET"), "-j", "MASQUERADE"}
	if run("iptables", append([]string{"-w", "-t", "nat", "-C"}, masquerade...)...) != nil {
		if err := run("iptables", append([]string{"-w", "-t", "nat", "-A"}, masquerade...)...); err != nil {
			return err
		}
	}
	content := fmt.Sprintf(`{"cniVersion":"0.4.0","name":"netd","plugins":[
{"type":"ptp","ipMasq":false,"mtu":1500,"ipam":{"type":"host-local","dataDir":"/run/cni-ipam-state","routes":[{"dst":"0.0.0.0/0"}],"ranges":[[{"subnet":%q}]]}},
{"type":"portmap","capabilities":{"portMappings":true}}]}`, cidr)
	file := "/etc/cni/net.d/10-netd.conflist"
	if present, err := os.ReadFile(file); err == nil && string(present) == content {
		return nil
	}
	if err := os.WriteFile(file+".new", []byte(content), 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

func run(name string, args ...string) error {
	output, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, output)
	}
	return nil
}
