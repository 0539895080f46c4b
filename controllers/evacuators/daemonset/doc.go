// Package daemonset is the built-in evacuator of the Pods of DaemonSets, class daemonset.apps.k8s.io. It reconciles one Node at a time, as
// drain/daemonset decides. It taints the Node while a drain there targets Pods of DaemonSets, and deletes the Pods whose active evacuator
// it is while the Node has the taint.
package daemonset
