#!/usr/bin/env bash
# control.sh STATE stop | start: the API server ends at once, as in a crash, while all else goes on; or it serves again.
. "$(dirname "$0")/settings.sh"

# The API server's processes, as this machine counts them.
api_servers() {
    local pid
    for pid in $(ip netns pids "$NAME-control"); do
        [ "$(tr '\0' '\n' <"/proc/$pid/cmdline" 2>/dev/null | head -1)" != "$BIN/kube-apiserver" ] || echo "$pid"
    done
}

case ${1:-} in
stop)
    touch "$STATE/api.off"
    kill -9 $(api_servers) 2>/dev/null || fail "stopping the API server" "it does not run" "read $LOGS/apiserver.log"
    ;;
start)
    rm -f "$STATE/api.off"
    wait_for 60 "starting the API server" "$LOGS/apiserver.log" kubectl get --raw /readyz
    ;;
*) fail "control.sh" "'${1:-}' is not known" "stop or start" ;;
esac
