// Package surge decides how a Deployment adds replicas before Pods of it are removed, so that it never has fewer available
// replicas than it declares.
//
// Decide returns the next write for one Deployment. It is a pure function of the observation. All state is stored on the
// Deployment itself:
//
//	may it surge? ─► record the baseline ─► scale up ─► until all are available ─► mark the Pods to remove ─► scale back
//	     │ no                │                  └──────────────┬──────────────────────────┘        and drop the baseline
//	     ▼                   │ cancelled, refused or not available in time: unmark, scale back, drop the baseline
//	 eviction                └ edited by another actor meanwhile: drop the baseline, eviction follows
//
// No Pod of a surge is evicted. Its ReplicaSet deletes it when the Deployment is scaled back. The Pod is marked with a deletion
// cost, which makes it the ReplicaSet's first choice (https://kep.k8s.io/2255). If the ReplicaSet deletes another Pod instead, the
// marked Pod is evicted. If more Pods wait than may surge at a time, they are replaced in rounds, each with its own baseline.
//
// # Exactly once
//
// The baseline is an annotation. It is stored before the number of replicas changes, and each write is conditional on the observed
// version. The write that scales the Deployment up also notes that it is scaled up, and the write that scales it back also removes
// the baseline. So a controller that starts after a crash knows which of these writes have happened.
//
// # Autoscalers
//
// A HorizontalPodAutoscaler would revert a change of the number of replicas. The surge raises its minReplicas instead, and restores
// it. The autoscaler is another object and has a separate note. If the autoscaler does not scale back within ReturnTime, for example
// because it has no metrics, the recorded number of replicas is written to the Deployment.
package surge
