// Package deployment is the built-in evacuator of the Pods of Deployments, class deployment.apps.k8s.io, where a maintenance asks
// for a surge. It works on one Deployment at a time, as drain/surge says, by one write after the other.
//
// Deployments and autoscalers are watched only while they have our label, which is while they are surged. All else about them is
// read when a Pod is to go, object by object.
package deployment
