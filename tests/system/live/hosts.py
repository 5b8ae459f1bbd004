"""Two hosts on this machine, each with a libvirt of its own: network and mount namespaces beneath one bridge.

    outside (this test, the controller) --- bridge --- up0 [br0 of the one host]
                                                   --- up0 [br0 of the other]

Nothing of this machine's own libvirt or rules is touched: a host has its own /etc/libvirt, /var/lib/libvirt and /run.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import trio

from tests.support.acceleration import tell_of_kvm
from tests.support.restic_stand_in import STAND_IN, write_stand_in
from tests.support.stack import BIN, Program, Stack

_FOLDERS = ("/var/lib/libvirt", "/var/log/libvirt", "/etc/libvirt", "/var/cache/libvirt")
_LIFE = f"""
set -e
mount --make-rprivate /
for place in "$@"; do
    own="$OWN$place"; mkdir -p "$own"
    # Without this machine's own guests, which come and go meanwhile.
    if [ "$place" = /etc/libvirt ]; then tar -C "$place" --exclude=./qemu -c . | tar -C "$own" -x; mkdir "$own/qemu"; fi
    mount --bind "$own" "$place"
done
# Of TPMs: empty, as where swtpm was just installed.
mkdir "$OWN/authority"
chown --reference=/var/lib/swtpm-localca "$OWN/authority"
chmod --reference=/var/lib/swtpm-localca "$OWN/authority"
mount --bind "$OWN/authority" /var/lib/swtpm-localca
mount -t tmpfs tmpfs /run
mkdir -p /run/libvirt
printf '%s\n' "$HOST_UUID" | tr -d - > "$OWN/machine-id"
mount --bind "$OWN/machine-id" /etc/machine-id
printf 'host_uuid = "%s"\\n' "$HOST_UUID" >> /etc/libvirt/libvirtd.conf
{STAND_IN}
virtlogd -d
libvirtd -d
echo ready
exec sleep infinity
"""


@dataclass
class Host:
    """One of the two. `life` is the process that holds its namespaces."""

    name: str
    namespace: str
    folder: Path
    life: subprocess.Popen[str]

    def inside(self, *command: str | Path) -> list[str]:
        return ["nsenter", "-t", str(self.life.pid), "-m", "-u", "-n", "--", *map(str, command)]

    def output(self, *command: str | Path) -> str:
        return subprocess.run(self.inside(*command), check=True, capture_output=True, text=True).stdout

    def virsh(self, *words: str) -> str:
        done = subprocess.run(self.inside("virsh", "-q", *words), check=False, capture_output=True, text=True)
        return done.stdout.strip()

    def domains(self) -> dict[str, str]:
        """By name, as libvirt has them: `running`, `paused`, `shut off`."""
        rows = (line.split(maxsplit=2) for line in self.virsh("list", "--all").splitlines())
        return {name: state for _, name, state in rows}

    def taps(self, prefix: str) -> list[str]:
        listed = self.output("ip", "-br", "link").splitlines()
        return [name for name in (line.split()[0].partition("@")[0] for line in listed) if name.startswith(prefix)]

    def cut(self, verdict: str | None) -> None:
        """What an agent and the controller send each other meets this verdict of nftables; with None, the cut ends."""
        self.output("nft", "add table inet cut; delete table inet cut")
        if verdict is not None:
            for hook, device in (("input", "iifname"), ("output", "oifname")):
                self.output(
                    "nft", f"add table inet cut; add chain inet cut {hook} {{ type filter hook {hook} priority -300; }}"
                )
                self.output("nft", f"add rule inet cut {hook} {device} br0 meta l4proto tcp {verdict}")

    def wire(self, is_up: bool) -> None:
        """The network to everybody else; what is cut off says nothing to anybody."""
        subprocess.run(["ip", "link", "set", self.namespace, "up" if is_up else "down"], check=True)


@dataclass
class Site:
    subnet: str
    bridge: str
    stack: Stack
    hosts: dict[str, Host]
    agents: dict[str, Program]
    image_id: str = ""

    @property
    def holds(self) -> Path:
        """A file in it has an agent stop at the fault point of that name."""
        return self.stack.folder / "holds"

    @asynccontextmanager
    async def held(self, agent: str, point: str) -> AsyncIterator[None]:
        """The block begins when the agent has come to the point, where it stands still until the block ends."""
        process = self.agents[agent].process
        assert process is not None
        try:
            with trio.fail_after(60):
                while not Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].startswith(" T"):
                    await trio.sleep(0.02)
            yield
        finally:
            (self.holds / point).unlink(missing_ok=True)
            process.send_signal(signal.SIGCONT)


@contextmanager
def _bridge(name: str, subnet: str) -> Iterator[None]:
    _ip("link", "add", name, "type", "bridge")
    try:
        _ip("address", "add", f"{subnet}.1/24", "dev", name)
        _ip("link", "set", name, "up")
        yield
    finally:
        _ip("link", "delete", name)


@contextmanager
def _host(name: str, number: int, bridge: str, subnet: str, folder: Path) -> Iterator[Host]:
    namespace = f"{bridge}{number}"
    own = folder / f"host-{name}"
    own.mkdir(mode=0o755)
    _ip("netns", "add", namespace)
    try:
        _ip("link", "add", namespace, "type", "veth", "peer", "name", "up0", "netns", namespace)
        _ip("link", "set", namespace, "master", bridge, "up")
        for words in (
            "link set lo up",
            "link add br0 type bridge",
            "link set br0 up",
            "link set up0 master br0 up",
            f"address add {subnet}.{number + 1}/24 dev br0",
            f"route add default via {subnet}.1",
        ):
            _ip("-n", namespace, *words.split())
        stand_in = str(write_stand_in(own))
        environment = dict(os.environ) | {"OWN": str(own), "HOST_UUID": str(uuid4()), "RESTIC": stand_in}
        life = subprocess.Popen(
            ["ip", "netns", "exec", namespace, "unshare", "-m", "-u", "sh", "-c", _LIFE, "host", *_FOLDERS],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        try:
            assert life.stdout is not None
            assert life.stdout.readline() == "ready\n"
            yield Host(name, namespace, folder / name, life)
        finally:
            _end(namespace)
            life.wait(10)
    finally:
        _ip("netns", "delete", namespace)


def _end(namespace: str) -> None:
    """Every process of the host: guests, daemons, agents."""
    for _ in range(3):
        pids = subprocess.run(["ip", "netns", "pids", namespace], check=True, capture_output=True, text=True).stdout
        for pid in pids.split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@asynccontextmanager
async def two_hosts(stack: Stack, subnet: str) -> AsyncIterator[Site]:
    """Nodes `alpha` and `beta`, online, on a pool of the subnet that is bridged."""
    bridge = f"lv{secrets.token_hex(2)}"
    with ExitStack() as parts:
        parts.enter_context(_bridge(bridge, subnet))
        (stack.folder / "holds").mkdir()
        await stack.start_controller()
        await stack.set_up()
        hosts: dict[str, Host] = {}
        agents: dict[str, Program] = {}
        for number, name in enumerate(("alpha", "beta"), 1):
            hosts[name] = parts.enter_context(_host(name, number, bridge, subnet, stack.folder))
        async with trio.open_nursery() as nursery:
            for name in hosts:
                nursery.start_soon(_join, stack, hosts[name], agents)
        try:
            yield Site(subnet, bridge, stack, hosts, agents)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 30):
                for agent in agents.values():
                    await agent.kill()


async def _join(stack: Stack, host: Host, agents: dict[str, Program]) -> None:
    async with stack.client() as client:
        bootstrap = await client.call("POST", "/nodes/bootstrap", body={"name": host.name})
    given = {
        "SVC_CONTROLLER": stack.url,
        "SVC_TOKEN": bootstrap["token"],
        "SVC_FINGERPRINT": bootstrap["fingerprint"],
    }
    await trio.run_process(
        host.inside(BIN / "svc-nodeagent", "enrol", "--data", host.folder), env=dict(os.environ) | given
    )
    await tell_of_kvm(host.folder / "host")
    (host.folder / "host" / "backups" / "machines").mkdir(parents=True)
    command = host.inside(
        BIN / "svc-nodeagent", "run", "--data", host.folder, "--prefix", stack.prefix, "--bridge", "br0"
    )
    agent = agents[host.name] = Program(host.name, command, stack.folder / f"{host.name}.log")
    agent.start(SVC_FAULT_HOLD=str(stack.folder / "holds"))
    await stack.node_online(host.name)
