# Part of the node's entrypoint.
awk 'NR == 1 || $2 != 0' /proc/cgroups >/kind/cgroups
umount /proc/cgroups 2>/dev/null || true
mount --bind /kind/cgroups /proc/cgroups
for setting in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
  mkdir -p "/kind/sys/$(dirname "$setting")"
  cat "/proc/sys/$setting" >"/kind/sys/$setting"
  mount --bind "/kind/sys/$setting" "/proc/sys/$setting"
done
# A new network namespace has the machine's value, and kubeadm requires this one.
echo 1 >/proc/sys/net/ipv4/ip_forward
