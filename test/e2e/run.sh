#!/usr/bin/env bash
# run.sh COMMAND…: runs a command with a separate Docker engine that has the images of the end-to-end tests.
#
# The engine, its containers and the command run in separate mount, network and PID namespaces. So bridges, routes and packet filters of the
# machine stay as they are, no packet can leave the machine, and everything ends with this script, also when it is killed. Images stay in
# $E2E_CACHE, for the next run.
set -euo pipefail
cd "$(dirname "$0")"
export E2E_CACHE=${E2E_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/capnm/e2e}
mkdir -p "$E2E_CACHE"

if [ "${1:-}" != --inside ]; then
	exec {lock}>"$E2E_CACHE/lock"
	flock -n "$lock" || { echo "Another run uses $E2E_CACHE." >&2; exit 1; }
	images/debian.sh "$E2E_CACHE/debian"
	# systemd, kubelet and containerd of each node use inotify instances of root. Linux allows 128, which is enough for five nodes.
	limit=/proc/sys/fs/inotify/max_user_instances
	before=$(cat $limit)
	# Docker leaves empty cgroups behind.
	trap 'echo "$before" >$limit; find /sys/fs/cgroup -depth -type d -path "*/docker*" -exec rmdir {} + 2>/dev/null || true' EXIT
	[ "$before" -ge 1024 ] || echo 1024 >$limit
	unshare --mount --net --pid --fork --kill-child --mount-proc ./run.sh --inside "$@"
	exit
fi
shift

mount --make-rshared /
ip link set lo up
# kubeadm and Docker expect a default route. It leads nowhere, and packets to it are rejected and counted. The first rules are for packets
# inside of clusters that follow the default route: those to Services until kube-proxy has written its rules, and those to Pods
# of a Node without a route. CoreDNS queries a name server that does not exist.
ip link add nowhere type veth peer name void
ip address add 192.0.2.1/32 dev nowhere
ip link set nowhere up
ip link set void up
ip route add default dev nowhere
services=10.96.0.0/12 pods=10.244.0.0/15 nameserver=198.51.100.1
iptables -N DOCKER-USER
iptables -A DOCKER-USER -o nowhere -d $services,$pods -j REJECT
iptables -A DOCKER-USER -o nowhere -d $nameserver -p udp --dport 53 -j REJECT
iptables -A DOCKER-USER -o nowhere -j REJECT
iptables -I OUTPUT -o nowhere ! -p icmp -j REJECT

export DOCKER_HOST=unix://$E2E_CACHE/docker.sock DOCKER_BUILDKIT=0
run=$(mktemp -d)
rm -f "$E2E_CACHE/docker.sock"
dockerd --data-root "$E2E_CACHE/docker" --exec-root "$run/exec" --pidfile "$run/pid" --host "$DOCKER_HOST" --dns $nameserver \
	--add-runtime "own-capabilities=$PWD/images/runc" --default-runtime own-capabilities >"$E2E_CACHE/dockerd.log" 2>&1 &
engine=$!

remove_containers() {
	docker ps -aq | xargs -r docker rm -fv >/dev/null
	docker network prune -f >/dev/null
}

finish() {
	local status=$?
	remove_containers
	kill $engine
	wait $engine || true
	rm -rf "$run"
	exit $status
}
trap finish EXIT
for _ in $(seq 100); do
	docker info >/dev/null 2>&1 && break
	kill -0 $engine 2>/dev/null || { tail "$E2E_CACHE/dockerd.log" >&2; exit 1; }
	sleep 0.2
done
remove_containers # of a run that was killed

# rejected prints how many packets a rule has rejected.
rejected() { iptables -nvxL "$1" | awk -v rule="$2" 'NR == rule + 2 {print $1}'; }

images/build.sh
[ -z "${E2E_UPGRADES:-}" ] || images/build.sh -next
# The engine cannot pull images. The machine's engine has another node image.
[ -z "${E2E_NODE_IMAGE:-}" ] || docker --host unix:///var/run/docker.sock save "$E2E_NODE_IMAGE" | docker load
"$@"
left=$(($(rejected DOCKER-USER 4) + $(rejected OUTPUT 1)))
if [ "$left" != 0 ]; then
	echo "Programs tried to reach other machines: $left packets were rejected." >&2
	iptables -nvxL >&2
	exit 1
fi
echo "No program tried to reach another machine."
