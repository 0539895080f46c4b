// Package tenants lets many Clusters share one API server. Each gets credentials of its own and sees a part of what is there:
// one Node, one Namespace, and what belongs to them. So hundreds of Clusters are what they are to a controller (each with its
// own connection, client certificate, watches and objects) without hundreds of API servers.
//
// In between is a proxy. It authenticates a tenant by the client certificate, speaks to the API server in the tenant's name as
// an authenticating proxy does, and narrows lists and watches by adding a field selector to them. It changes nothing else: what
// is sent and received is the API server's own.
package tenants
