#!/usr/bin/env bash
# build.sh [-next]: builds the images of the end-to-end tests in the engine of run.sh, unless they are there: the node, the load balancer of
# control planes, the managers of Cluster API and of its operator, and a CSI driver with its attacher. With -next, it builds the node of the
# Kubernetes release to which a test upgrades. Nothing is pulled: programs are those of hack/tools, everything else is Debian's.
set -euo pipefail
cd "$(dirname "$0")"
root=$(cd ../../.. && pwd)
next=${1:-}
kubernetes="kubeadm kubelet kube-apiserver kube-controller-manager kube-scheduler kube-proxy"
tools="kubectl containerd containerd-shim-runc-v2 ctr crictl etcd coredns capi-core capi-kubeadm-bootstrap capi-kubeadm-control-plane capi-operator capd csi-attacher csi-mock"
declare -A tool
path() { (cd "$root" && go run ./hack/tools/install path "$1"); }
for name in $kubernetes; do tool[$name]=$(path "$name$next"); done
for name in $tools; do tool[$name]=$(path "$name"); done

# The images depend on the paths of the programs, which contain their versions, and on the files of this directory.
key=$( (printf '%s\n' "${tool[@]}" | sort; find . -type f -exec sha256sum {} + | sort) | sha256sum | cut -c1-12)
if [ "$(docker image inspect -f '{{.Config.Labels.key}}' "capnm.dev/node:e2e$next" 2>/dev/null)" = "$key" ]; then exit; fi
echo "Building the images of the end-to-end tests" $next >&2

work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
node=$work/node
cp -a "$E2E_CACHE/debian" "$node"
version=$("${tool[kubeadm]}" version -o short)

# image NAME PROGRAM [FILES]: an image with a static program, and the files of a directory.
image() {
	local files=$work/image name=$1 program; program=/usr/local/bin/$(basename "$2" "$next")
	rm -rf "$files"; mkdir -p "$files/usr/local/bin"
	[ -z "${3:-}" ] || cp -a "$3/." "$files/"
	install -m 755 "$2" "$files$program"
	tar -C "$files" --numeric-owner -c . | docker import -c 'ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
		-c "ENTRYPOINT [\"$program\"]" - "$name" >/dev/null
}

# network_tools copies the programs that change routes and packet filters, with their libraries, from the node.
network_tools() {
	local file name
	mkdir -p "$1"/{tmp,run,etc,var/run,usr/sbin,usr/lib/x86_64-linux-gnu}
	local programs="/usr/sbin/xtables-nft-multi /usr/sbin/nft /usr/sbin/conntrack /usr/bin/ip /usr/bin/kmod"
	local plugins; plugins=$(cd "$node" && find usr/lib/x86_64-linux-gnu/xtables -name '*.so' | sed 's#^#/#')
	for file in $programs $(chroot "$node" ldd $programs $plugins | grep -oE '/[^ ]+\.so[^ ]*' | grep -v /xtables/ | sort -u); do
		mkdir -p "$1$(dirname "$file")"
		cp "$node$(chroot "$node" readlink -f "$file")" "$1$file"
	done
	cp -a "$node/usr/lib/x86_64-linux-gnu/xtables" "$1/usr/lib/x86_64-linux-gnu/"
	for name in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do ln -s xtables-nft-multi "$1/usr/sbin/$name"; done
}

for name in app netd; do (cd .. && CGO_ENABLED=0 go build -o "$work/$name" "./images/$name"); done
network_tools "$work/network"
preloaded="capnm.dev/app:e2e capnm.dev/netd:e2e"
image capnm.dev/app:e2e "$work/app"
image capnm.dev/netd:e2e "$work/netd" "$work/network"
# kubeadm says under which names it expects the images of a control plane.
for name in $("${tool[kubeadm]}" config images list --kubernetes-version "$version"); do
	program=$(basename "${name%:*}")
	case $program in
	pause) image "$name" "$work/app"; pause=$name ;;
	kube-proxy) image "$name" "${tool[$program]}" "$work/network" ;;
	*) image "$name" "${tool[$program]}" ;;
	esac
	preloaded="$preloaded $name"
done
[ -n "$next" ] || for name in capi-core capi-kubeadm-bootstrap capi-kubeadm-control-plane capi-operator capd csi-attacher csi-mock; do image "capnm.dev/$name:e2e" "${tool[$name]}"; done

# What kind's images/base/Dockerfile makes of Debian.
files=$(cd .. && go list -m -f '{{.Dir}}' sigs.k8s.io/kind)/images/base/files
install -m 755 -t "$node/usr/local/bin" "$files"/usr/local/bin/*
mkdir -p "$node"/kind/{bin,manifests} "$node"/etc/{containerd,kubernetes/manifests,systemd/system/{kubelet.service.d,multi-user.target.wants}} "$node/opt/cni"
install -m 755 -t "$node/kind/bin" "$files"/kind/bin/*
install -m 644 -t "$node/etc" "$files/etc/crictl.yaml"
for dir in containerd default sysctl.d systemd/system systemd/system/kubelet.service.d; do
	find "$files/etc/$dir" -maxdepth 1 -type f -exec install -m 644 -t "$node/etc/$dir" {} +
done
find "$node/lib/systemd/system/sysinit.target.wants/" -name systemd-tmpfiles-setup.service -delete
rm -f "$node"/{lib,etc}/systemd/system/multi-user.target.wants/* "$node"/etc/systemd/system/*.wants/* \
	"$node"/lib/systemd/system/{local-fs.target.wants/*,sockets.target.wants/*{udev,initctl}*,basic.target.wants/*}
for unit in kubelet containerd; do ln -s "/etc/systemd/system/$unit.service" "$node/etc/systemd/system/multi-user.target.wants/"; done
echo ReadKMsg=no >>"$node/etc/systemd/journald.conf"
ln -sf /usr/lib/systemd/systemd "$node/sbin/init"
ln -sf /usr/share/zoneinfo/UTC "$node/etc/localtime"
for name in containerd containerd-shim-runc-v2 ctr crictl; do install -m 755 -t "$node/usr/local/bin" "${tool[$name]}"; done
ln -s /usr/sbin/runc "$node/usr/local/sbin/runc"
for name in kubeadm kubelet kubectl; do install -m 755 "${tool[$name]}" "$node/usr/bin/$name"; done
ln -sfn /usr/lib/cni "$node/opt/cni/bin"
install -m 644 -t "$node/kind/manifests" manifests/*
echo -n "$version" >"$node/kind/version"
"${tool[ctr]}" oci spec | jq '.hooks.createContainer[.hooks.createContainer|length] |= . + {"path": "/kind/bin/mount-product-files.sh"} | del(.process.rlimits)' \
	>"$node/etc/containerd/cri-base.json"
rm -f "$node"/etc/{machine-id,resolv.conf,hostname}

# What differs on machines with cgroup v1, or whose root lacks CAP_SYS_RESOURCE.
# - Without that capability no process can be protected from the OOM killer.
sed -i "s/restrict_oom_score_adj = false/restrict_oom_score_adj = true/; s#registry.k8s.io/pause:[0-9.]*#$pause#" "$node/etc/containerd/config.toml"
sed -i '/^OOMScoreAdjust/d' "$node/etc/systemd/system/containerd.service"
# - The kubelet refuses cgroup v1 by default. A flag, so that each kubeadm configuration can be used.
sed -i 's#KUBELET_EXTRA_ARGS=#&--fail-cgroupv1=false #' "$node/etc/default/kubelet"
# - Some kernel settings are those of the machine. Debian's files would change them, and the kubelet gets copies instead.
rm -f "$node"/usr/lib/sysctl.d/*
# - systemd would mount cgroup controllers that the machine has not mounted, for all nodes and the machine.
grep -q '^select_iptables$' "$node/usr/local/bin/entrypoint"
sed -i '/^select_iptables$/e cat own-kernel-settings.sh' "$node/usr/local/bin/entrypoint"
ln -sf /dev/null "$node/etc/systemd/system/systemd-binfmt.service"

# build prints what Docker says only if it fails: its classic builder, which needs no plugin, is deprecated.
build() { docker build "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; return 1; }; }

./preload.sh "$node" "$(dirname "${tool[containerd]}")/containerd" "${tool[ctr]}" $preloaded
tar -C "$node" --numeric-owner --xattrs -c . | docker import -c 'ENV container=docker' -c 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]' - capnm.dev/root:e2e >/dev/null
# `docker import` cannot set the stop signal, which tells systemd to power off.
printf '%s\n' 'FROM capnm.dev/root:e2e' 'STOPSIGNAL SIGRTMIN+3' | build -t capnm.dev/node:new -
# Cluster API's provider writes the configuration of the load balancer, whose maxconn needs more open files than root may have. haproxy
# uses the first value that it reads.
[ -n "$next" ] || build -t capnm.dev/haproxy:e2e haproxy
# The label is last, so that an interrupted build starts again.
build --label "key=$key" -t "capnm.dev/node:e2e$next" - <<<'FROM capnm.dev/node:new'
docker image prune -f >/dev/null
