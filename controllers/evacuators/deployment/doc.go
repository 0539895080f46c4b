// Package deployment is the built-in evacuator of the Pods of Deployments, class deployment.apps.k8s.io, where a maintenance requests
// a surge. It reconciles one Deployment at a time, as drain/surge decides.
//
// It watches Deployments and HorizontalPodAutoscalers only while they have our label, which they have during a surge. It gets all other
// objects individually when it evacuates a Pod.
package deployment
