// Package tenants lets many Clusters share one API server. Each has separate credentials and sees only its Nodes, one Namespace and
// the objects that belong to them. For a controller they are hundreds of Clusters, each with its own connection, client certificate,
// watches and objects, without hundreds of API servers.
//
// A proxy authenticates a tenant by its client certificate, impersonates the tenant at the API server as an authenticating proxy
// does, and adds a selector to lists and watches. It does not modify anything else.
package tenants
