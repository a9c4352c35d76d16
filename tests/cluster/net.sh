#!/usr/bin/env bash
# net.sh STATE: namespaces, links, addresses and routes.
#
#   client ── eth0 ── clients [router] br0 ──┬── eth0 [control]
#                                            ├── eth0 [node1] ── veths of its pods
#                                            └── ...
. "$(dirname "$0")/settings.sh"

# make ROLE: a namespace that forwards, with loopback up.
make() {
    ip netns add "$NAME-$1"
    nsenter --net="$(netns "$1")" sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 \
        net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0 \
        net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
    ip -n "$NAME-$1" link set lo up
}

# join ROLE HOST: on the nodes' network, as HOST; everything else is behind the router.
join() {
    make "$1"
    ip -n "$NAME-router" link add "$1" type veth peer name eth0 netns "$NAME-$1"
    ip -n "$NAME-router" link set "$1" master br0 up
    address "$1" eth0 "$FABRIC4.$2/24" "$FABRIC6:$2/64"
    ip -n "$NAME-$1" route add default via "$FABRIC4.1"
    ip -n "$NAME-$1" route add default via "$FABRIC6:1"
}

# address ROLE DEVICE ADDRESS...
address() {
    local role=$1 device=$2
    shift 2
    for address in "$@"; do ip -n "$NAME-$role" addr add "$address" dev "$device"; done
    ip -n "$NAME-$role" link set "$device" up
}

make router
# Flows are spread by ports too, and alike for both families.
nsenter --net="$(netns router)" sysctl -qw net.ipv4.fib_multipath_hash_policy=1 net.ipv6.fib_multipath_hash_policy=1
ip -n "$NAME-router" link add br0 type bridge
address router br0 "$FABRIC4.1/24" "$FABRIC6:1/64"

make client
ip -n "$NAME-router" link add clients type veth peer name eth0 netns "$NAME-client"
address router clients "$CLIENTS4.1/24" "$CLIENTS6:1/64"
address client eth0 "$CLIENTS4.2/24" "$CLIENTS6:2/64"
ip -n "$NAME-client" route add default via "$CLIENTS4.1"
ip -n "$NAME-client" route add default via "$CLIENTS6:1"

join control 2
for n in $(nodes); do join node$n "1$n"; done
# Pods are reached through their nodes, from the router and from the other nodes.
for role in router control $(printf 'node%s ' $(nodes)); do
    for n in $(nodes); do
        [ $role != node$n ] || continue
        ip -n "$NAME-$role" route add "$PODS4.$n.0/24" via "$FABRIC4.1$n"
        ip -n "$NAME-$role" route add "$PODS6:$n::/64" via "$FABRIC6:1$n"
    done
done
# Neither the control plane nor the router has a kube-proxy; node 1 has, and masquerades what is not from a pod.
for role in router control; do
    ip -n "$NAME-$role" route add $SERVICES4 via "$FABRIC4.11"
    ip -n "$NAME-$role" route add $SERVICES6 via "$FABRIC6:11"
done
bash "$HERE/route.sh" "$STATE"
