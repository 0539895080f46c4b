#!/usr/bin/env bash
# preload.sh ROOT CONTAINERD CTR IMAGE…: imports images of Docker into the store of a node's containerd, by running containerd on it.
set -euo pipefail
root=$(readlink -f "$1") containerd=$2 ctr=$3
shift 3
state=$(mktemp -d)
cat >"$state/config.toml" <<TOML
version = 3
root = "$root/var/lib/containerd"
state = "$state/state"
disabled_plugins = ["io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images", "io.containerd.grpc.v1.cri"]
[grpc]
  address = "$state/socket"
[plugins."io.containerd.internal.v1.opt"]
  path = "$state/opt"
TOML
"$containerd" --config "$state/config.toml" >"$state/log" 2>&1 &
pid=$!
trap 'kill $pid; wait $pid 2>/dev/null || true; rm -rf "$state"' EXIT
for _ in $(seq 50); do [ ! -S "$state/socket" ] || break; sleep 0.2; done
docker save "$@" | "$ctr" --address "$state/socket" -n k8s.io images import --local --snapshotter overlayfs \
	--label io.cri-containerd.pinned=pinned --discard-unpacked-layers - >"$state/import" 2>&1 || { cat "$state/import" "$state/log" >&2; exit 1; }
# Each node gets a copy of /var, so the packed layers are removed, which are half of it.
"$ctr" --address "$state/socket" -n k8s.io content prune references >/dev/null 2>&1
