#!/usr/bin/env bash
# up.sh STATE: makes a cluster in the empty or new folder STATE. In the environment: NAME, NODES, BIN, IMAGES.
: "${NAME:?}" "${NODES:?}" "${BIN:?}" "${IMAGES:?}"
. "$(dirname "$0")/settings.sh"

[ ! -f "$STATE/env" ] || fail "making cluster $NAME" "$STATE belongs to one already" "cargo xtask cluster down"
[ ! -e "$(netns control)" ] || fail "making cluster $NAME" "another checkout has one of this name" \
    "another name: VESTIBULE_CLUSTER=... in the environment"
for tool in ip nsenter unshare containerd runc ctr nft conntrack openssl; do
    command -v $tool >/dev/null || fail "making cluster $NAME" "no $tool here" "cargo xtask cluster up, which installs it"
done
mkdir -p "$STATE" "$LOGS"
printf '%s=%q\n' NAME "$NAME" NODES "$NODES" BIN "$BIN" IMAGES "$IMAGES" >"$STATE/env"

begun=$(date +%s%N)
tell() { printf 'cluster: %5.1f s  %s\n' "$((($(date +%s%N) - begun) / 100000000))e-1" "$*"; }

bash "$HERE/pki.sh" "$STATE"
bash "$HERE/net.sh" "$STATE"
boot control control-init.sh
for n in $(nodes); do boot node$n node-init.sh $n; done
wait_for 60 "starting the API server" "$LOGS/apiserver.log" kubectl get --raw /readyz
tell "API server ready"
for n in $(nodes); do
    # No controller hands out pod ranges here: the nodes' CNI has fixed ones, these are for show and for kube-proxy.
    wait_for 90 "registering node$n" "$LOGS/kubelet$n.log" kubectl patch node node$n --patch \
        "{\"spec\": {\"podCIDR\": \"$PODS4.$n.0/24\", \"podCIDRs\": [\"$PODS4.$n.0/24\", \"$PODS6:$n::/64\"]}}"
done
wait_for 90 "waiting for the nodes" "$LOGS/kubelet1.log" kubectl wait --for=condition=Ready nodes --all --timeout=1s
wait_for 30 "making the default ServiceAccount" "$LOGS/controllers.log" kubectl get serviceaccount default
tell "$NODES nodes Ready"
