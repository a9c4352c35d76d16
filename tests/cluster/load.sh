#!/usr/bin/env bash
# load.sh STATE TAR...: imports images (docker or OCI archives) into every node.
. "$(dirname "$0")/settings.sh"

importing=()
for n in $(nodes); do
    for tar in "$@"; do on_node "$n" ctr --namespace k8s.io images import - <"$tar" >>"$LOGS/import$n.log" 2>&1; done &
    importing+=($!)
done
for job in "${importing[@]}"; do
    wait "$job" || fail "importing $*" "containerd refuses" "read $LOGS/import*.log"
done
