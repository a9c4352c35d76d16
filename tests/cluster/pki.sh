#!/usr/bin/env bash
# pki.sh STATE: authority, certificates, tokens, kubeconfigs.
. "$(dirname "$0")/settings.sh"
mkdir -p "$PKI" && cd "$PKI"

key() { openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }

# certificate FILE SUBJECT [NAMES]
certificate() {
    key "$1.key"
    openssl req -new -key "$1.key" -subj "$2" |
        openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out "$1.crt" -extfile <(
            echo extendedKeyUsage=serverAuth,clientAuth
            [ -z "${3:-}" ] || echo "subjectAltName=$3"
        ) 2>openssl.log || fail "signing $1.crt" "$(cat openssl.log)" "openssl version"
}

# account FILE USER [GROUP]: a token, and FILE.kubeconfig with it.
account() {
    local token
    token=$(openssl rand -hex 16)
    echo "$token,$2,$2${3:+,\"$3\"}" >>tokens.csv
    cat >"$1.kubeconfig" <<END
apiVersion: v1
kind: Config
clusters: [{name: $NAME, cluster: {server: "https://$API", certificate-authority: $PKI/ca.crt}}]
users: [{name: $1, user: {token: $token}}]
contexts: [{name: $NAME, context: {cluster: $NAME, user: $1}}]
current-context: $NAME
END
}

key ca.key
openssl req -x509 -new -key ca.key -days 30 -subj /CN=vestibule-test-authority -out ca.crt
certificate apiserver /CN=kube-apiserver \
    "IP:$FABRIC4.2,IP:$FABRIC6:2,IP:127.0.0.1,IP:${SERVICES4%0/24}1,IP:${SERVICES6%/112}1,DNS:localhost,DNS:kubernetes.default.svc"
certificate kubelet-client /O=system:masters/CN=apiserver-kubelet-client
key accounts.key
openssl pkey -in accounts.key -pubout -out accounts.pub
account admin admin system:masters
account controllers system:kube-controller-manager
account scheduler system:kube-scheduler
account proxy system:kube-proxy
for n in $(nodes); do account node$n system:node:node$n system:nodes; done
