#!/usr/bin/env bash
# control-init.sh STATE: process 1 of the control plane.
. "$(dirname "$0")/settings.sh"
ulimit -n 20000
mount --make-rprivate /
mount -t proc proc /proc

# Who of the service accounts asked for what: tests compare it with what their roles allow.
cat >"$STATE/audit.yaml" <<END
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
  - {level: None, userGroups: ["system:serviceaccounts:kube-system"]}
  - {level: Metadata, userGroups: ["system:serviceaccounts"], omitStages: [RequestReceived]}
  - {level: None}
END

"$BIN/etcd" --data-dir "$STATE/etcd" --unsafe-no-fsync --log-level error \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380 >"$LOGS/etcd.log" 2>&1 &

serve() {
    "$BIN/kube-apiserver" --etcd-servers http://127.0.0.1:2379 \
        --bind-address :: --secure-port "${API#*:}" --advertise-address "${API%:*}" \
        --tls-cert-file "$PKI/apiserver.crt" --tls-private-key-file "$PKI/apiserver.key" --client-ca-file "$PKI/ca.crt" \
        --kubelet-client-certificate "$PKI/kubelet-client.crt" --kubelet-client-key "$PKI/kubelet-client.key" \
        --kubelet-preferred-address-types InternalIP --service-cluster-ip-range $SERVICES4,$SERVICES6 \
        --service-account-issuer https://kubernetes.default.svc --service-account-key-file "$PKI/accounts.pub" \
        --service-account-signing-key-file "$PKI/accounts.key" --token-auth-file "$PKI/tokens.csv" \
        --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction --allow-privileged \
        --audit-policy-file "$STATE/audit.yaml" --audit-log-path "$LOGS/audit.json" >>"$LOGS/apiserver.log" 2>&1
}
# What dies comes back, but while there is the file that `control.sh stop` leaves.
while :; do
    [ -e "$STATE/api.off" ] || serve || true
    sleep 0.1
done &

ready() { "$BIN/kubectl" --kubeconfig "$PKI/admin.kubeconfig" get --raw /readyz; }
wait_for 60 "starting the API server" "$LOGS/apiserver.log" ready

# identity FILE: the three places where a component wants its kubeconfig.
identity() { echo "--kubeconfig $1 --authentication-kubeconfig $1 --authorization-kubeconfig $1"; }

"$BIN/kube-controller-manager" $(identity "$PKI/controllers.kubeconfig") --leader-elect=false \
    --use-service-account-credentials --service-account-private-key-file "$PKI/accounts.key" \
    --root-ca-file "$PKI/ca.crt" --cluster-signing-cert-file "$PKI/ca.crt" --cluster-signing-key-file "$PKI/ca.key" \
    --node-monitor-period 1s --node-monitor-grace-period 12s >"$LOGS/controllers.log" 2>&1 &
"$BIN/kube-scheduler" $(identity "$PKI/scheduler.kubeconfig") --leader-elect=false >"$LOGS/scheduler.log" 2>&1 &
wait
