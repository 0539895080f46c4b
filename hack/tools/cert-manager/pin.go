// Package certmanager pins the version of cert-manager whose CRDs test/clusterctl installs: the version that the pinned clusterctl
// installs. Nothing of it is built.
package certmanager

import _ "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1" // keeps the requirement
