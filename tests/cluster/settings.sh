# Sourced by every script here, with the cluster's folder as first argument: names, addresses, and how to fail.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
STATE=${1:?the folder of a cluster}
shift
# Written by up.sh: NAME, NODES, BIN (the Kubernetes programs), IMAGES (tars for every node).
[ ! -f "$STATE/env" ] || . "$STATE/env"

FABRIC4=10.77.0 FABRIC6=fd77:    # the nodes' network: router .1, control plane .2, node N .1N
CLIENTS4=10.78.0 CLIENTS6=fd78:  # beyond the router: router .1, client .2
PODS4=10.88 PODS6=fd88:0:0       # node N has PODS4.N.0/24 and PODS6:N::/64
SERVICES4=10.99.0.0/24 SERVICES6=fd99::/112
API=$FABRIC4.2:6443
# What the router sends to the nodes: addresses for balancers to use.
VIPS4=198.51.100.0/24 VIPS6=2001:db8:51::/64

PKI=$STATE/pki LOGS=$STATE/log

# fail STEP REASON REMEDY
fail() {
    printf '\nfailed: %s\nreason: %s\ntry:    %s\n' "$@" >&2
    exit 1
}

# Namespaces and cgroups of this cluster are called NAME-control, NAME-router, NAME-client, NAME-node1 ...
netns() { echo "/run/netns/$NAME-$1"; }

nodes() { seq "$NODES"; }

kubectl() {
    nsenter --net="$(netns control)" "$BIN/kubectl" --kubeconfig "$PKI/admin.kubeconfig" "$@"
}

# wait_for SECONDS STEP LOG COMMAND...: until the command succeeds.
wait_for() {
    local seconds=$1 step=$2 log=$3 end=$((SECONDS + $1))
    shift 3
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || fail "$step" "not within $seconds s" "read $log and the other files beside it"
        sleep 0.1
    done
}

# boot ROLE SCRIPT [ARGUMENT...]: runs SCRIPT as process 1 of namespaces of its own, in the network namespace of ROLE.
boot() {
    local role=$1 script=$2
    shift 2
    setsid nsenter --net="$(netns "$role")" \
        unshare --mount --uts --ipc --pid --fork --kill-child bash "$HERE/$script" "$STATE" "$@" \
        >>"$LOGS/$role.log" 2>&1 </dev/null &
    echo $! >"$STATE/$role.pid"
}

# unplug ROLE: ends everything that runs in ROLE, at once, as a power cut does.
unplug() {
    local role=$1 pid
    if [ -f "$STATE/$role.pid" ]; then
        # Its child is process 1 of the pid namespace; all others there end with it.
        kill -9 "$(cat "$STATE/$role.pid")" 2>/dev/null || true
        rm -f "$STATE/$role.pid"
    fi
    [ -e "$(netns "$role")" ] || return 0
    for _ in $(seq 100); do
        pid=$(ip netns pids "$NAME-$role")
        [ -n "$pid" ] || return 0
        kill -9 $pid 2>/dev/null || true
        sleep 0.05
    done
    fail "ending $role" "processes $pid do not end" "look at them: ps -o pid,stat,wchan,cmd $pid"
}

# on_node N COMMAND...: inside all namespaces of the node.
on_node() {
    local role=node$1 first
    shift
    [ -f "$STATE/$role.pid" ] && first=$(pgrep -P "$(cat "$STATE/$role.pid")") ||
        fail "running a command on $role" "the node is off" "cargo xtask cluster start ${role#node}"
    nsenter --target "$first" --all "$@"
}

# Cgroups of a node, in every hierarchy.
cgroups_of() { find /sys/fs/cgroup -maxdepth 2 -type d -name "$NAME-$1"; }

# Takes a node's cgroups away; those of processes that have just ended need a moment.
remove_cgroups() {
    local left
    for _ in $(seq 50); do
        left=$(cgroups_of "$1")
        [ -n "$left" ] || return 0
        find $left -depth -type d -exec rmdir {} + 2>/dev/null || true
        sleep 0.05
    done
    echo "left behind: $left" >&2
}
