// Package surge decides how a Deployment makes room before Pods of it leave, so that it never has fewer available replicas
// than it declares.
//
// Decide looks at one Deployment, and says what the next write is. It is a pure function of what was observed; nothing is
// remembered but what is written on the Deployment itself:
//
//	may it surge? ─► record the baseline ─► scale up ─► until all are available ─► mark the Pods that leave ─► scale back
//	     │ no                │                  └──────────────┬──────────────────────────┘         and drop the baseline
//	     ▼                   │ called off, or not available in time: unmark, scale back, drop the baseline
//	 eviction                └ edited by somebody else meanwhile: drop the baseline, eviction follows
//
// No Pod of a surge is evicted. Its ReplicaSet deletes it when the Deployment is scaled back, and the deletion cost with which
// it is marked makes it the first choice (https://kep.k8s.io/2255). Where the ReplicaSet chooses another one all the same, the
// Pod that is left is evicted. Pods that are more than may surge at a time take turns: a baseline for each round.
//
// # Exactly once
//
// The baseline is an annotation that is stored before the number of replicas changes, and each write is conditional on the
// version that was looked at. That the Deployment is scaled up is noted in the write that scales it up, and the baseline goes
// with the write that scales it back. So wherever a controller dies, the next one sees which of them have happened.
//
// # Autoscalers
//
// A HorizontalPodAutoscaler would undo all that. So its minReplicas is raised instead, and restored. That is another object, with
// a note of its own. Where it doesn't scale back by itself, since it has no metrics or takes its time, the recorded number is
// written after ReturnTime.
package surge
