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
venv=/opt/svc-node
agent=$venv/bin/svc-nodeagent
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

install_agent() {
    say "get-node: installing the agent"
    ask --cacert "$work/authority.pem" --max-time 120 -o "$work/agent.whl" "https://$name:$port/api/v1/nodes/agent.whl"
    [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
    # pip reads name and version from the file's name.
    version=$("$venv/bin/python" -c 'import sys, zipfile
names = [name for name in zipfile.ZipFile(sys.argv[1]).namelist() if name.endswith(".dist-info/METADATA")]
print(names[0].split("/")[0].removesuffix(".dist-info").partition("-")[2])' "$work/agent.whl")
    mv "$work/agent.whl" "$work/svc_nodeagent-$version-py3-none-any.whl"
    # What is installed as root has the hashes of the locks that the wheel brings; what libvirt-python is built with too,
    # which pip would otherwise fetch in whatever version there is.
    "$venv/bin/python" -m zipfile -e "$work/svc_nodeagent-$version-py3-none-any.whl" "$work/agent"
    pip_install --require-hashes --no-deps -r "$work/agent/svc_nodeagent/build.lock"
    pip_install --require-hashes --no-deps --no-build-isolation -r "$work/agent/svc_nodeagent/requirements.lock"
    # The same version with other contents is a repair, which pip would not see without being forced.
    pip_install --no-index --no-deps --force-reinstall "$work/svc_nodeagent-$version-py3-none-any.whl"
}

pip_install() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }

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
        cat >/etc/systemd/system/svc-node.service <<UNIT
[Unit]
Description=Compute node agent
After=network-online.target libvirtd.service
Wants=network-online.target libvirtd.service

[Service]
ExecStart=$agent run --data $data
Restart=always
RestartSec=2
KillMode=process

[Install]
WantedBy=multi-user.target
UNIT
        systemctl daemon-reload
        systemctl enable --quiet svc-node.service
        systemctl restart svc-node.service
    else
        pidof libvirtd >/dev/null || libvirtd -d
        pidof virtlogd >/dev/null || virtlogd -d
        pid=$(cat "$data/agent.pid" 2>/dev/null || true)
        if [ -n "$pid" ] && grep -q svc-nodeagent "/proc/$pid/cmdline" 2>/dev/null; then
            kill "$pid"
            for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
                [ -d "/proc/$pid" ] || break
                sleep 1
            done
        fi
        setsid "$agent" run --data "$data" >>"$log" 2>&1 </dev/null &
        echo $! >"$data/agent.pid"
    fi
    say "get-node: the agent runs; the controller shows the node as online in a moment"
}

# Everything is in functions: a script cut off in the middle of its download does nothing.
main
