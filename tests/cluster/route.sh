#!/usr/bin/env bash
# route.sh STATE [N...]: the router sends what is for the VIPs to these nodes, a flow to one of them; to all when none
# is named, to nobody with `none`. With one node, all packets go there.
. "$(dirname "$0")/settings.sh"

if [ "${1:-}" = none ]; then
    ip -n "$NAME-router" route replace unreachable $VIPS4
    ip -n "$NAME-router" -6 route flush $VIPS6
    exit 0
fi
[ $# -gt 0 ] || set -- $(nodes)
hops4=() hops6=()
for n in "$@"; do
    hops4+=(nexthop via "$FABRIC4.1$n" dev br0)
    hops6+=(nexthop via "$FABRIC6:1$n" dev br0)
done
ip -n "$NAME-router" route replace $VIPS4 "${hops4[@]}"
# `replace` of a route with several next hops replaces only its first.
ip -n "$NAME-router" -6 route flush $VIPS6
ip -n "$NAME-router" -6 route add $VIPS6 "${hops6[@]}"
