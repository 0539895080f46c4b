// Package signals decides which eviction requests are sent although a PodDisruptionBudget refuses them. Some operators wait for the
// request: an admission webhook on the creation of pods/eviction notes the Pod, and the operator then moves it in its own way, as KubeVirt
// migrates a virtual machine. The budget of such a Pod often never allows a disruption, since only the operator may move it. Such a request
// is a signal. It is an ordinary eviction request: the API server applies the budget to it.
package signals
