package nodeagent

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/logind"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/shutdown"
)

// KeepLock holds a second delay lock in a separate process. Without it, a node would power off at once if the agent's process ended
// during a shutdown, because logind grants no new locks then. KeepLock releases its lock after the agent has released its own, or at
// the deadline. config applies until the agent has stored the configuration of the Node.
func KeepLock(ctx context.Context, config shutdown.Config, state State, keeper *logind.Keeper) {
	go keeper.Run(ctx)
	changed := keeper.Changed()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(configInterval):
		}
		if stored := state.Config(); stored != nil {
			config = *stored
			keeper.DelayFor(shutdown.Total(config.Phases()), config.LogindDropInDir)
		}
		if !keeper.State().Preparing {
			continue
		}
		start := time.Now()
		budget := shutdown.Budget(config, keeper.State().DelayMax)
		for keeper.State().Preparing && keeper.Locked() {
			stored := state.Shutdown()
			if time.Since(start) >= budget || stored != nil && stored.Released {
				klog.FromContext(ctx).Info("Releasing the second lock", "after", time.Since(start))
				keeper.Release()
				break
			}
			time.Sleep(decisionInterval)
		}
	}
}
