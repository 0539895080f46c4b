package nodeagent

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/logind"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/shutdown"
)

// KeepLock holds a second lock, in a process of its own, so that the node doesn't go down at once when the agent ends in the
// middle of a shutdown: logind gives no new lock then. It lets go when the agent has, or the time is up. The agent notes the
// configuration of the Node; config applies until then.
func KeepLock(ctx context.Context, config shutdown.Config, state State, keeper *logind.Keeper) {
	go keeper.Run(ctx)
	changed := keeper.Changed()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(configEvery):
		}
		if noted := state.Config(); noted != nil {
			config = *noted
			keeper.DelayFor(shutdown.Total(config.Phases()), config.LogindDropInDir)
		}
		if !keeper.State().Preparing {
			continue
		}
		start := time.Now()
		budget := shutdown.Budget(config, keeper.State().DelayMax)
		for keeper.State().Preparing && keeper.Locked() {
			noted := state.Shutdown()
			if time.Since(start) >= budget || noted != nil && noted.Released {
				klog.FromContext(ctx).Info("Letting go of the lock", "after", time.Since(start))
				keeper.Release()
				break
			}
			time.Sleep(lookEvery)
		}
	}
}
