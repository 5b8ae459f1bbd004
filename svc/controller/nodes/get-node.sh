#!/bin/sh
# Turns this Debian host into a compute node of the controller that the command names. Run as root.
#
#   SVC_CONTROLLER   where the controller is: https://name:8443
#   SVC_TOKEN        the one-time token
#   SVC_FINGERPRINT  SHA-256 of the controller's certificate authority
#
# Run again, it repairs what is missing: a host that has joined keeps its identity and needs no new token. After its
# node was deleted, a new command lets it join anew.
set -eu

data=/var/lib/svc-node
base=/usr/local/lib/svc-node
agent=$data/releases/current/bin/svc-nodeagent
log=/var/log/svc-node.log

say() { printf '%s\n' "$*" >&2; }
fail() { say "get-node: $*"; exit 1; }

main() {
    [ "$(id -u)" = 0 ] || fail "run this as root"
    [ -n "${SVC_CONTROLLER:-}" ] || fail "SVC_CONTROLLER is not set; copy the whole command that the controller shows"
    [ -n "${SVC_FINGERPRINT:-}" ] || fail "SVC_FINGERPRINT is not set; copy the whole command that the controller shows"
    command -v apt-get >/dev/null || fail "this script knows Debian and its relatives only; nothing was changed"

    export SVC_CONTROLLER SVC_FINGERPRINT SVC_TOKEN="${SVC_TOKEN:-}"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    address=${SVC_CONTROLLER#https://}
    port=${address##*:}
    trust_controller
    install_packages
    install_agent
    join
    start
}

# By this name the controller shows a certificate of its own authority, whatever certificate browsers are shown.
name=nodes.svc.internal
ask() { curl -fsS --connect-to "$name:$port:$address" "$@"; }

# Fetch the authority without trust and compare it with the fingerprint; everything after is verified against it.
trust_controller() {
    command -v curl >/dev/null && command -v openssl >/dev/null || apt_install curl openssl ca-certificates
    ask -k --max-time 30 -o "$work/authority.pem" "https://$name:$port/api/v1/nodes/authority" ||
        fail "no controller answers at $SVC_CONTROLLER; nothing was changed"
    found=$(openssl x509 -in "$work/authority.pem" -noout -fingerprint -sha256 | sed 's/.*=//; s/://g' | tr A-F a-f)
    wanted=$(printf '%s' "$SVC_FINGERPRINT" | sed 's/://g' | tr A-F a-f)
    [ "$found" = "$wanted" ] ||
        fail "the server at $SVC_CONTROLLER is not the controller that the fingerprint names; nothing was changed"
}

install_packages() {
    say "get-node: installing Debian packages"
    apt_install python3 python3-venv python3-dev gcc pkg-config libvirt-dev \
        libvirt-daemon-system libvirt-clients qemu-system-x86 qemu-utils genisoimage nftables iproute2
}

apt_install() {
    missing=
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    # shellcheck disable=SC2086 # a list of package names
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing >/dev/null || {
        apt-get update -qq
        # shellcheck disable=SC2086
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing >/dev/null
    }
}

# The wheel brings the launcher, what installs a release (svc_nodeagent/releases.py), and the locks whose hashes are those
# of all that is installed as root.
install_agent() {
    say "get-node: installing the agent"
    ask --cacert "$work/authority.pem" --max-time 120 -o "$work/agent.whl" "https://$name:$port/api/v1/nodes/agent.whl"
    /usr/bin/python3 -I -m zipfile -e "$work/agent.whl" "$work/agent"
    rm -rf "$base.new"
    mkdir -p "$base.new/svc_nodeagent" "$data"
    chmod 711 "$data"
    for file in __init__ durable releases launcher; do
        cp "$work/agent/svc_nodeagent/$file.py" "$base.new/svc_nodeagent/"
    done
    install -m 755 "$work/agent/svc_nodeagent/svc-node-launcher" "$base.new/"
    rm -rf "$base"
    mv "$base.new" "$base"
    # The same release is there once; another one takes its place at the restart below.
    PYTHONPATH=$base /usr/bin/python3 -s -m svc_nodeagent.releases "$data" "$work/agent.whl"
    ln -sfn "$agent" /usr/local/bin/svc-nodeagent
}

join() {
    if [ -f "$data/enrolment.json" ]; then
        # Where its node was deleted it joins anew; where it was not, the controller refuses and nothing changes.
        if [ -n "${SVC_TOKEN:-}" ] && "$agent" enrol --data "$data" 2>"$work/refusal"; then
            return
        fi
        say "get-node: this host has joined already and keeps its identity"
        return
    fi
    [ -n "${SVC_TOKEN:-}" ] || fail "SVC_TOKEN is not set; copy the whole command that the controller shows"
    "$agent" enrol --data "$data"
}

start() {
    if [ -d /run/systemd/system ]; then
        sed "s|^ExecStart=.*|ExecStart=$base/svc-node-launcher $data|" \
            "$data/releases/current/svc_nodeagent/svc-node.service" >/etc/systemd/system/svc-node.service
        systemctl daemon-reload
        systemctl enable --quiet svc-node.service
        systemctl restart svc-node.service
    else
        pidof libvirtd >/dev/null || libvirtd -d
        pidof virtlogd >/dev/null || virtlogd -d
        pid=$(cat "$data/agent.pid" 2>/dev/null || true)
        if [ -n "$pid" ] && grep -q -e svc-nodeagent -e svc-node-launcher "/proc/$pid/cmdline" 2>/dev/null; then
            kill "$pid"
            for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25; do
                [ -d "/proc/$pid" ] || break
                sleep 1
            done
        fi
        setsid "$base/svc-node-launcher" "$data" >>"$log" 2>&1 </dev/null &
        echo $! >"$data/agent.pid"
    fi
    say "get-node: the agent runs; the controller shows the node as online in a moment"
}

# Everything is in functions: a script cut off in the middle of its download does nothing.
main
