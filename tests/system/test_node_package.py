"""A host whose first process is systemd becomes a node for good: by the agent's package, and by the node script."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.support.image_paths import IMAGES
from tests.support.package import packages
from tests.support.systemd_root import SystemdRoot, systemd_root

pytestmark = [pytest.mark.system, pytest.mark.isolated]

UNIT = "svc-node.service"
AUTHORITY = "/var/lib/svc/controller/tls/authority.pem"
API = "https://127.0.0.1:8443"
PASSWORD = "Staple-battery-7-horse"
HOST = (
    "adduser,ca-certificates,curl,openssl,procps,python3,python3-venv,python3-dev,gcc,pkg-config,libvirt-dev,"
    "libvirt-daemon-system,libvirt-clients,qemu-system-x86,qemu-utils,genisoimage,nftables,iproute2"
)
"""With what the script would install besides: this host has no way to a package index."""
SET_UP = f"""
set -e
guard="-H X-Service-Request:1 -H Origin:{API} -H Content-Type:application/json"
ask() {{ curl -fsS --cacert {AUTHORITY} -b /root/jar -c /root/jar $guard "$@"; }}
token=$(cat /var/lib/svc/controller/setup-token)
ask {API}/api/v1/setup -d '{{"token":"'$token'","email":"root@example.test","name":"Root","password":"{PASSWORD}"}}'
ask {API}/api/v1/tokens -d '{{"name":"tests","scopes":["admin"],"days":30}}' |
    sed 's/.*"token":"\\([^"]*\\)".*/\\1/' >/root/token
"""
SVC = f"""#!/bin/sh
SVC_URL={API} SVC_TOKEN=$(cat /root/token) SVC_CA={AUTHORITY} XDG_CONFIG_HOME=/root exec svc "$@"
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemdRoot]:
    """A host with a controller of its own, set up, with an image and no node yet."""
    with systemd_root(tmp_path_factory.mktemp("host"), HOST) as root:
        for name, package in packages().items():
            (root.folder / "var/cache" / name).write_bytes(package.read_bytes())
        (root.folder / "root/demo.qcow2").write_bytes((IMAGES / "demo.qcow2").read_bytes())
        root.run("dpkg", "--install", "/var/cache/svc-controller")
        root.run("sh", "-c", SET_UP)
        (root.folder / "usr/bin/as-root").write_text(SVC)
        (root.folder / "usr/bin/as-root").chmod(0o755)
        described = ["--name", "Demo", "--distribution", "demo", "--release", "1", "--login-user", "debian"]
        root.run("as-root", "image", "create", "demo", *described, "--format", "qcow2", "--source", "file")
        root.run("as-root", "image", "upload", "demo", "/root/demo.qcow2")
        yield root


def until_online(host: SystemdRoot, node: str) -> str:
    return host.until("sh", "-c", f"as-root node show {node} | grep -E '^state +online' && as-root node show {node}")


def test_a_package_makes_a_node_that_runs_machines_with_few_rights(host: SystemdRoot) -> None:
    host.run("dpkg", "--install", "/var/cache/svc-nodeagent")
    assert host.run("systemctl", "is-active", UNIT, check=False).strip() == "inactive"

    command = host.run("as-root", "node", "add", "alpha")
    joining = re.findall(r"SVC_[A-Z]+=\S+", command)
    host.run("env", *joining, "svc-nodeagent", "enrol")
    host.run("systemctl", "start", UNIT)

    shown = until_online(host, "alpha")
    assert re.search(r"^agent.upgrade +current$", shown, re.MULTILINE)
    sizes = ("--vcpus", "1", "--memory-mib", "256", "--disk-gib", "1")
    host.run("as-root", "vm", "create", "one", "--image", "demo", *sizes, "--password", "--wait")
    assert "running" in host.run("virsh", "list")
    host.run("systemd-analyze", "security", "--no-pager", "--threshold=45", UNIT)


def test_a_restart_of_the_agent_leaves_machines_alone(host: SystemdRoot) -> None:
    guest = host.run("pgrep", "-f", "guest=svc-")

    host.run("systemctl", "restart", UNIT)

    until_online(host, "alpha")
    assert host.run("pgrep", "-f", "guest=svc-") == guest


def test_the_script_repairs_a_node_and_gives_it_the_controllers_agent(host: SystemdRoot) -> None:
    """The packages of others are there already, from the package: this host reaches no index."""
    guest = host.run("pgrep", "-f", "guest=svc-")
    command = host.run("as-root", "node", "add", "again").split("\n")
    (line,) = (line for line in command if line.startswith("curl "))

    host.run("sh", "-c", line)

    until_online(host, "alpha")
    assert host.run("pgrep", "-f", "guest=svc-") == guest
    started = host.run("systemctl", "show", "--property", "ExecStart", "--value", UNIT)
    assert "/usr/local/lib/svc-node/svc-node-launcher" in started
    assert '"running": true' in host.run("/usr/local/bin/svc-nodeagent", "status")


def test_a_removed_agent_leaves_machines_running_and_its_data(host: SystemdRoot) -> None:
    host.run("rm", "/etc/systemd/system/svc-node.service")
    host.run("systemctl", "daemon-reload")

    host.run("dpkg", "--purge", "svc-nodeagent")

    assert "running" in host.run("virsh", "list")
    assert host.run("ls", "/var/lib/svc-node/enrolment.json").strip() == "/var/lib/svc-node/enrolment.json"
