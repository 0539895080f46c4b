// Package daemonset is the built-in evacuator of the Pods of DaemonSets, class daemonset.apps.k8s.io. It works on one Node at a
// time, as drain/daemonsets says: it keeps our taint on the Node as long as some drain there has come to Pods of DaemonSets,
// and, while the taint is there, deletes the Pods whose Evacuations are its to carry out.
package daemonset
