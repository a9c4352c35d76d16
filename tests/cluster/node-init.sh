#!/usr/bin/env bash
# node-init.sh STATE N: process 1 of a node. Its network, mount, process, host name and IPC namespaces are its own, so
# every program uses its usual places.
. "$(dirname "$0")/settings.sh"
n=$1 NODE=$STATE/node$n
ulimit -n 20000

# Places: /proc of this pid namespace, /sys of this network namespace with the cgroups of before, a bpffs of its own,
# and what a node writes kept apart in $NODE, where a power cut leaves it. /run goes with the power.
mount --make-rprivate /
mount -t proc proc /proc
mkdir -p "$NODE/cgroup" "$NODE/kernel"
mount --rbind /sys/fs/cgroup "$NODE/cgroup"
mount -t sysfs sysfs /sys
mount --rbind "$NODE/cgroup" /sys/fs/cgroup
umount -l "$NODE/cgroup"
mount -t bpf bpf /sys/fs/bpf
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/netns /run/lock
for folder in /var/lib/{kubelet,containerd,cni,vestibule} /var/log/{pods,containers} /etc/{cni,containerd} /opt/cni; do
    mkdir -p "$folder" "$NODE$folder"
    mount --bind "$NODE$folder" "$folder"
done
# kubelet wants these values; the machine keeps its own.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    file=$NODE/kernel/$(tr / _ <<<"${setting%=*}")
    echo "${setting#*=}" >"$file"
    mount --bind "$file" "/proc/sys/${setting%=*}"
done
mount --make-rshared /
hostname node$n

# A cgroup in every hierarchy. Those of an earlier life would cost kubelet 3 s each.
remove_cgroups node$n
if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
    # Version 2 hands controllers only to children of a group without processes.
    mkdir -p "/sys/fs/cgroup/$NAME-others" "/sys/fs/cgroup/$NAME-node$n"
    while read -r pid; do echo "$pid" >"/sys/fs/cgroup/$NAME-others/cgroup.procs" 2>/dev/null || true; done </sys/fs/cgroup/cgroup.procs
    for group in /sys/fs/cgroup "/sys/fs/cgroup/$NAME-node$n"; do
        sed 's/\(^\| \)/ +/g' "$group/cgroup.controllers" >"$group/cgroup.subtree_control"
    done
else
    for hierarchy in /sys/fs/cgroup/*/; do
        [ -L "${hierarchy%/}" ] || mkdir -p "$hierarchy$NAME-node$n"
    done
    # A child of cpuset starts empty and refuses processes.
    for file in cpuset.cpus cpuset.mems; do
        cat /sys/fs/cgroup/cpuset/$file >"/sys/fs/cgroup/cpuset/$NAME-node$n/$file"
    done
fi

mkdir -p /etc/cni/net.d
# Every packet of a pod is routed, none bridged: kube-proxy needs no br_netfilter.
cat >/etc/cni/net.d/10-cluster.conflist <<END
{"cniVersion": "1.0.0", "name": "cluster", "plugins": [
  {"type": "ptp", "ipMasq": false, "mtu": 1500, "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam",
   "ranges": [[{"subnet": "$PODS4.$n.0/24"}], [{"subnet": "$PODS6:$n::/64"}]],
   "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}]}
END
# Without CAP_SYS_RESOURCE nothing may ask for less than its own OOM score.
cat >/etc/containerd/config.toml <<END
version = 2
oom_score = 0
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "vestibule.test/pause:1"
  restrict_oom_score_adj = true
  disable_tcp_service = true
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "overlayfs"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = false
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "/etc/cni/net.d"
END
cat >"$NODE/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $PKI/ca.crt}}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /$NAME-node$n
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
evictionHard: {memory.available: 0%, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%, imagefs.inodesFree: 0%}
imageGCHighThresholdPercent: 100
makeIPTablesUtilChains: false
maxOpenFiles: 20000
oomScoreAdj: 0
resolvConf: ""
serializeImagePulls: false
registryPullQPS: 0
eventRecordQPS: 0
nodeStatusUpdateFrequency: 2s
nodeLeaseDurationSeconds: 8
END
cat >"$NODE/proxy.yaml" <<END
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: node$n
clientConnection: {kubeconfig: $PKI/proxy.kubeconfig}
clusterCIDR: $PODS4.0.0/16,$PODS6::/48
detectLocalMode: ClusterCIDR
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
oomScoreAdj: 0
END

# keep NAME COMMAND...: what dies comes back, as under an init system.
keep() {
    local name=$1
    shift
    while :; do
        "$@" >>"$LOGS/$name.log" 2>&1 || true
        echo "$(date +%T) $name ended" >>"$LOGS/ended.log"
        sleep 1
    done
}

keep containerd$n containerd --config /etc/containerd/config.toml &
wait_for 30 "starting containerd" "$LOGS/containerd$n.log" ctr version
if [ ! -f "$NODE/imported" ]; then
    for tar in "$IMAGES"/*.tar; do ctr --namespace k8s.io images import "$tar" >>"$LOGS/import$n.log" 2>&1; done
    touch "$NODE/imported"
fi
keep kubelet$n "$BIN/kubelet" --config "$NODE/kubelet.yaml" --kubeconfig "$PKI/node$n.kubeconfig" \
    --hostname-override node$n --node-ip "$FABRIC4.1$n,$FABRIC6:1$n" &
keep proxy$n "$BIN/kube-proxy" --config "$NODE/proxy.yaml" &
wait
