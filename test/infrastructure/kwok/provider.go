package kwok

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	controlplanev1 "github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok/api/controlplane/v1beta1"
	infrav1 "github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok/api/infrastructure/v1beta1"
)

// Options configures a provider.
type Options struct {
	// Management is the management cluster, where Cluster API's CRDs are installed.
	Management *rest.Config
	// Workload finds the workload cluster of a Cluster. It returns false if there is none yet.
	Workload func(cluster client.ObjectKey) (Workload, bool)
	// WithoutCRDs does not install the CRDs, for example because clusterctl has installed them.
	WithoutCRDs bool
	// Log is the provider's logger. The zero value discards the log.
	Log logr.Logger
}

// Provider runs in the test process until it is stopped.
type Provider struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// unknownWorkloadRetry is the interval for looking up a missing workload cluster, which causes no event.
const unknownWorkloadRetry = 500 * time.Millisecond

// Start installs the provider's CRDs, unless WithoutCRDs is set, and runs its controllers until the context is done or Stop
// is called. When it returns, the controllers are running.
func Start(ctx context.Context, opts Options) (*Provider, error) {
	if !opts.WithoutCRDs {
		if err := InstallCRDs(opts.Management); err != nil {
			return nil, err
		}
	}
	manager, err := newManager(opts)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	provider := &Provider{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(provider.done)
		provider.err = errors.Wrap(manager.Start(ctx), "running the kwok provider")
	}()
	select {
	case <-manager.Elected():
		return provider, nil
	case <-provider.done:
		cancel()
		return nil, provider.err
	}
}

// Stop stops the controllers and waits for them. It keeps their objects.
func (p *Provider) Stop() error {
	p.cancel()
	<-p.done
	return p.err
}

// AddToScheme registers the kinds of the provider with a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	return (&runtime.SchemeBuilder{infrav1.AddToScheme, controlplanev1.AddToScheme}).AddToScheme(scheme)
}

func newManager(opts Options) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	kinds := runtime.SchemeBuilder{corev1.AddToScheme, clusterv1.AddToScheme, AddToScheme}
	if err := kinds.AddToScheme(scheme); err != nil {
		return nil, errors.Wrap(err, "registering kinds")
	}
	if opts.Log.IsZero() {
		// Not logr.Discard, which the manager treats as no logger.
		opts.Log = logr.New(log.NullLogSink{})
	}
	manager, err := ctrl.NewManager(opts.Management, ctrl.Options{
		Scheme:                 scheme,
		Logger:                 opts.Log,
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		// Tests of one process may each run a provider.
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
	})
	if err != nil {
		return nil, errors.Wrap(err, "creating the manager of the kwok provider")
	}
	for _, reconciler := range []interface{ setup(ctrl.Manager) error }{
		&clusterReconciler{manager.GetClient(), opts.Workload},
		&controlPlaneReconciler{manager.GetClient()},
		&machineReconciler{manager.GetClient(), opts.Workload},
	} {
		if err := reconciler.setup(manager); err != nil {
			return nil, errors.Wrapf(err, "setting up %T", reconciler)
		}
	}
	return manager, nil
}
