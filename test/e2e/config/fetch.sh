#!/usr/bin/env bash
# Downloads the files of Cluster API's release that the suite needs into data/.
set -euo pipefail
cd "$(dirname "$0")/.."
version=v1.14.2
mkdir -p data
for file in metadata.yaml cluster-template-development.yaml clusterclass-quick-start.yaml; do
  curl --fail --location --silent --show-error --output "data/$file" \
    "https://github.com/kubernetes-sigs/cluster-api/releases/download/$version/$file"
done
# Pods of docker Clusters get their network from it, as in Cluster API's own tests.
curl --fail --location --silent --show-error \
  "https://raw.githubusercontent.com/kubernetes-sigs/cluster-api/$version/test/e2e/data/cni/kindnet/kindnet.yaml" |
  sed 's|${DOCKER_POD_CIDRS},${DOCKER_POD_IPV6_CIDRS}|192.168.0.0/16|' > data/kindnet.yaml
