#!/usr/bin/env bash
# down.sh STATE: ends a cluster and takes away what belonged to it: processes, mounts, cgroups, namespaces, the folder.
. "$(dirname "$0")/settings.sh"

[ -n "${NAME:-}" ] || exit 0
for pid in "$STATE"/*.pid; do
    [ -f "$pid" ] && unplug "$(basename "$pid" .pid)"
done
for n in $(nodes); do remove_cgroups node$n; done
for file in "/run/netns/$NAME-"*; do
    [ -e "$file" ] || continue
    unplug "${file#/run/netns/$NAME-}"
    ip netns del "$(basename "$file")"
done
rm -rf --one-file-system "$STATE"
