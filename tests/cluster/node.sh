#!/usr/bin/env bash
# node.sh STATE kill N | start N | run N COMMAND...: a node's power switch, and a command on it.
. "$(dirname "$0")/settings.sh"

what=${1:-} n=${2:-}
[[ "$n" =~ ^[1-9]$ ]] && [ "$n" -le "$NODES" ] ||
    fail "finding node '$n'" "this cluster has nodes 1 to $NODES" "a number"
case $what in
kill) unplug node$n && remove_cgroups node$n ;;
start)
    [ ! -f "$STATE/node$n.pid" ] || fail "starting node$n" "it is on" "cargo xtask cluster kill $n"
    boot node$n node-init.sh "$n"
    ;;
run) on_node "$n" "${@:3}" ;;
*) fail "node.sh" "'$what' is not known" "kill, start or run" ;;
esac
