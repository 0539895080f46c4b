// Command csi-mock is the CSI driver of Kubernetes' own storage tests, which serves volumes named 1, 2 and 3. Their storage is an empty
// directory. It registers with the kubelet itself, since the module of the program that does this, node-driver-registrar, is not published.
package main

import (
	"context"
	"log"
	"net"
	"os"

	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/driver"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

const (
	name   = "mock.csi.k8s.io"
	socket = "/var/lib/kubelet/plugins/" + name + "/csi.sock"
	// registry is where the kubelet looks for sockets of drivers.
	registry = "/var/lib/kubelet/plugins_registry"
)

func main() {
	mock := service.New(service.Config{DriverName: name})
	server := driver.NewCSIDriver(&driver.CSIDriverServers{Controller: mock, Identity: mock, Node: mock})
	if err := server.Start(listen(socket), nil); err != nil {
		log.Fatal(err)
	}
	kubelet := grpc.NewServer()
	registration.RegisterRegistrationServer(kubelet, registrar{})
	log.Fatal(kubelet.Serve(listen(registry + "/" + name + "-reg.sock")))
}

// listen replaces the socket that an earlier process has left.
func listen(socket string) net.Listener {
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		log.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		log.Fatal(err)
	}
	return listener
}

// registrar tells the kubelet where the driver's socket is.
type registrar struct {
	registration.UnimplementedRegistrationServer
}

func (registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: name, Endpoint: socket, SupportedVersions: []string{"1.0.0"}}, nil
}

func (registrar) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !status.PluginRegistered {
		log.Fatal("the kubelet refused the driver: ", status.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}
