"""Live moves between two hosts with a real libvirt and QEMU each: the guest goes on, and runs once whatever is cut."""

from __future__ import annotations

import itertools
import secrets
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio

from svc.cli.client import Client
from svc.cli.failures import Failure
from svc_nodeagent.hypervisor.platform_state import TPM_STATES
from tests.support import tpm
from tests.support.drawn import drawn
from tests.support.figures import report_figure
from tests.support.image_paths import IMAGES
from tests.support.stack import Stack
from tests.support.terminal import Terminal, serial_console
from tests.system.live.hosts import Site, two_hosts

pytestmark = [pytest.mark.system, pytest.mark.isolated]

PASSWORD = "Staple-battery-7-horse"
ECHO, BOOT_ID = 7, 8
"""Ports of the guest."""


@asynccontextmanager
async def a_site() -> AsyncIterator[tuple[Site, Client]]:
    subnet = f"10.199.{secrets.randbelow(256)}"
    with tempfile.TemporaryDirectory(prefix="svc-live-", dir="/var/lib") as folder:
        Path(folder).chmod(0o755)
        stack = Stack(Path(folder))
        stack.at(f"{subnet}.1")
        try:
            async with two_hosts(stack, subnet) as site, stack.client() as client:
                pool = {
                    "name": "tests",
                    "cidr": f"{subnet}.0/24",
                    "topology": "bridged",
                    "gateway": f"{subnet}.1",
                    "range_start": f"{subnet}.100",
                    "range_end": f"{subnet}.200",
                }
                await client.call("POST", "/networks", body={"name": "tests", "default": True, "pool": pool})
                site.image_id = (await stack.import_demo_image())["id"]
                yield site, client
        except Exception as error:
            error.add_note(f"The controller's log ends:\n{stack.controller.tail()}")
            raise
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 60):
                await stack.controller.stop()


@dataclass
class Machines:
    site: Site
    client: Client
    nodes: dict[str, str]

    async def made(self, name: str, *, image_id: str | None = None, memory_mib: int = 128) -> str:
        """On alpha, running."""
        [project] = (await self.client.call("GET", "/projects"))["items"]
        body = {
            "name": name,
            "image_id": image_id or self.site.image_id,
            "project_id": project["id"],
            "vcpus": 1,
            "memory_mib": memory_mib,
            "disk_gib": 1,
            "access_mode": "root_password",
            "set_password": PASSWORD,
            "node_id": self.nodes["alpha"],
        }
        created = await self.client.call("POST", "/vms", body=body)
        await self.site.stack.task(self.client, created)
        return str(created["vm"]["id"])

    async def given_a_volume(self, vm_id: str) -> str:
        """Its id."""
        made = await self.client.call("POST", "/volumes", body={"name": "data", "size_gib": 1, "vm_id": vm_id})
        await self.site.stack.task(self.client, made)
        return str(made["volume"]["id"])

    async def show(self, vm_id: str) -> dict[str, Any]:
        return dict(await self.client.call("GET", f"/vms/{vm_id}"))

    async def ordered(self, vm_id: str) -> str:
        """A move to the other node; the id of its task."""
        here = (await self.show(vm_id))["node_name"]
        target = self.nodes["beta" if here == "alpha" else "alpha"]
        with trio.fail_after(60):
            while True:
                try:
                    task = await self.client.call("POST", f"/vms/{vm_id}/migrate", body={"node_id": target})
                    return str(task["id"])
                except Failure as failure:
                    # What an earlier move has left is being removed, or an agent has just been started.
                    if not any(words in str(failure) for words in ("still has to remove", "not online", "offline")):
                        raise
                    await trio.sleep(0.1)

    async def ended(self, task_id: str) -> dict[str, Any]:
        with trio.fail_after(120):
            while (task := await self.client.call("GET", f"/tasks/{task_id}"))["status"] in ("queued", "running"):
                await trio.sleep(0.1)
        return dict(task)

    async def backed_up(self, vm_id: str) -> None:
        ordered = await self.client.call("POST", f"/vms/{vm_id}/backups")
        ended = await self.ended(str(ordered["id"]))
        assert ended["status"] == "succeeded", ended["error_message"]

    async def runs_at(self, vm_id: str) -> str:
        """Where it runs, by the record and by both hosts, once nothing of it is anywhere else."""
        name = f"{self.site.stack.prefix}-{vm_id}"
        with trio.fail_after(60):
            while True:
                seen = {host.name: host.domains().get(name) for host in self.site.hosts.values()}
                assert list(seen.values()).count("running") <= 1, f"it runs twice: {seen}"
                shown = await self.show(vm_id)
                here = str(shown["node_name"])
                if shown["status"] == "running" and seen == dict.fromkeys(seen, None) | {here: "running"}:
                    return here
                await trio.sleep(0.1)

    async def until_only_at(self, where: str, volume_id: str) -> None:
        """The volume's file is at that host, and at no other."""
        files = {
            host.name: host.folder / "host" / "volumes" / f"{volume_id}.qcow2" for host in self.site.hosts.values()
        }
        with trio.fail_after(60):
            while [name for name, file in files.items() if file.exists()] != [where]:
                await trio.sleep(0.1)

    def tpm_at(self, vm_id: str) -> list[str]:
        """The hosts that have what its TPM keeps."""
        kept = TPM_STATES / vm_id
        return [host.name for host in self.site.hosts.values() if host.output("sh", "-c", f"ls -d {kept} || true")]

    def left_at(self, vm_id: str) -> list[str]:
        """The hosts that have a file, a tap or a socket of it."""
        return [
            host.name
            for host in self.site.hosts.values()
            if (host.folder / "host" / "machines" / vm_id).exists()
            or host.taps(self.site.stack.prefix)
            or host.output("find", "/run/svc-node/live", "-mindepth", "1")
        ]


@asynccontextmanager
async def machines() -> AsyncIterator[Machines]:
    async with a_site() as (site, client):
        listed = (await client.call("GET", "/nodes"))["items"]
        yield Machines(site, client, {each["name"]: each["id"] for each in listed})


@dataclass
class Answers:
    """When somebody answered, on Trio's clock."""

    at: list[float]

    @property
    def longest_gap(self) -> float:
        return max(later - earlier for earlier, later in itertools.pairwise(self.at))


async def ping(address: str, answers: Answers) -> None:
    command = ["ping", "-n", "-i", "0.05", address]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        async for chunk in process.stdout:
            answers.at += [trio.current_time()] * chunk.count(b"bytes from")
    finally:
        process.kill()


async def talk(stream: trio.SocketStream, answers: Answers) -> None:
    """One connection: a byte there and back, again and again."""
    while True:
        await stream.send_all(b"x")
        assert await stream.receive_some(1) == b"x"
        answers.at.append(trio.current_time())
        await trio.sleep(0.05)


FILL = "dd if=/dev/urandom of=/dev/vdc bs=1M count=8 2>/dev/null && sync"
DIGEST = "echo 3 >/proc/sys/vm/drop_caches; dd if=/dev/vdc bs=1M count=8 2>/dev/null | md5sum"
"""From the volume, which comes after its disk and its seed, and not out of the memory of the guest."""


async def test_a_guest_goes_on_with_its_volume_while_it_moves_there_and_back() -> None:
    async with machines() as now:
        vm_id = await now.made("web")
        volume_id = await now.given_a_volume(vm_id)
        address = (await now.show(vm_id))["primary_ip"]
        async with serial_console(now.client, vm_id) as terminal:
            await terminal.log_in("root", PASSWORD)
            assert (await terminal.run(FILL)).endswith("0")
            written = await terminal.run(DIGEST)
            for port, program in ((ECHO, "cat"), (BOOT_ID, "cat /proc/sys/kernel/random/boot_id")):
                await terminal.run(f"(while :; do nc -l -p {port} -e {program}; done) >/dev/null 2>&1 & true")
        pings, talks = Answers([]), Answers([])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ping, address, pings)
            with trio.fail_after(30):
                while len(pings.at) < 5:
                    await trio.sleep(0.1)
                before = await booted(address)
                stream = await trio.open_tcp_stream(address, ECHO)
            nursery.start_soon(talk, stream, talks)
            for there in ("beta", "alpha"):
                # What QEMU records for the next backup does not keep the guest from moving
                await now.backed_up(vm_id)
                ended = await now.ended(await now.ordered(vm_id))
                assert ended["status"] == "succeeded", ended["error_message"]
                assert await now.runs_at(vm_id) == there
                await now.until_only_at(there, volume_id)
                async with serial_console(now.client, vm_id) as terminal:
                    await terminal.take_up()
                    assert await terminal.run(DIGEST) == written
                seen = len(talks.at)
                with trio.fail_after(30):
                    while len(talks.at) < seen + 5:
                        await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        await now.backed_up(vm_id)
        report_figure(f"live move, longest gap: ping {pings.longest_gap:.2f} s, TCP {talks.longest_gap:.2f} s")
        assert await booted(address) == before


async def booted(address: str) -> bytes:
    """The id of the guest's boot."""
    with trio.fail_after(30):
        async with await trio.open_tcp_stream(address, BOOT_ID) as stream:
            return b"".join([chunk async for chunk in stream])


VARIABLES = "/sys/firmware/efi/efivars"
VARIABLE = f"{VARIABLES}/Ours-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"


async def kept(terminal: Terminal) -> tuple[str, bytes]:
    """What firmware and TPM have of what was written."""
    asked = await terminal.run(tpm.asking(tpm.read(8)))
    return await terminal.run(f"tail -c 4 {VARIABLE}"), tpm.value_of(tpm.answered(asked), 8)


async def test_what_firmware_and_tpm_keep_goes_along() -> None:
    async with machines() as now:
        of_image = {"slug": "secure", "firmware": "uefi_secure", "tpm": "2.0"}
        words = {"name": "Secure", "distribution": "demo", "release": "1"}
        image = await now.site.stack.import_image(IMAGES / "demo.qcow2", **words, **of_image)
        vm_id = await now.made("sealed", image_id=image["id"], memory_mib=256)
        mount = f"mount -t efivarfs none {VARIABLES} && cat /proc/sys/kernel/random/boot_id"
        async with serial_console(now.client, vm_id) as terminal:
            await terminal.log_in("root", PASSWORD, boots_within=300)
            boot = await terminal.run(mount)
            await terminal.run(f"printf '\\007\\000\\000\\000kept' > {VARIABLE}")
            for command in (tpm.define(8), tpm.write(b"our seal")):
                tpm.answered(await terminal.run(tpm.asking(command)))
            written = await kept(terminal)
        assert written == ("kept\n0", b"our seal")

        ended = await now.ended(await now.ordered(vm_id))
        assert ended["status"] == "succeeded", ended["error_message"]
        assert await now.runs_at(vm_id) == "beta"
        async with serial_console(now.client, vm_id) as terminal:
            await terminal.take_up()
            assert await terminal.run("cat /proc/sys/kernel/random/boot_id") == boot
            assert await kept(terminal) == written
        await now.site.stack.task(now.client, await now.client.call("POST", f"/vms/{vm_id}/reboot"))
        async with serial_console(now.client, vm_id) as terminal:
            await terminal.log_in("root", PASSWORD, boots_within=300)
            assert await terminal.run(mount) != boot
            assert await kept(terminal) == written
        with trio.fail_after(30):
            while now.left_at(vm_id) != ["beta"] or now.tpm_at(vm_id) != ["beta"]:
                await trio.sleep(0.1)


STEPS_A_RUN = 3
AT_SOURCE = ("live.luggage_sent", "live.sending", "live.sent")
AT_TARGET = ("live.begun", "live.ready", "live.arrived", "live.carried", "live.gone_on")


async def test_killed_at_each_step_an_agent_comes_back_and_the_guest_runs_once(request: pytest.FixtureRequest) -> None:
    async with machines() as now:
        vm_id = await now.made("web")
        volume_id = await now.given_a_volume(vm_id)
        for point in drawn((*AT_SOURCE, *AT_TARGET), STEPS_A_RUN, request.config):
            here = await now.runs_at(vm_id)
            there = "beta" if here == "alpha" else "alpha"
            dies = now.site.agents[here if point in AT_SOURCE else there]
            await dies.kill()
            dies.start(SVC_FAULT_POINT=point)
            await now.site.stack.node_online(dies.name)

            task = await now.ordered(vm_id)
            await dies.ended(60)
            dies.start()
            ended = await now.ended(task)

            assert ended["status"] in ("succeeded", "failed"), (point, ended)
            where = await now.runs_at(vm_id)
            assert ended["status"] == "failed" or where == there, (point, ended)
            await now.until_only_at(where, volume_id)


REFUSED, SILENT = "reject with tcp reset", "drop"
CUTS = (
    ("live.begun", REFUSED),
    ("live.luggage_sent", REFUSED),
    ("live.ready", SILENT),
    ("live.sending", REFUSED),
    ("live.sent", REFUSED),
    ("live.arrived", REFUSED),
    ("live.carried", SILENT),
    ("live.gone_on", REFUSED),
)
CUT_SECONDS = 2.0


async def test_cut_off_at_each_step_the_guest_runs_once_where_the_record_says(request: pytest.FixtureRequest) -> None:
    async with machines() as now:
        vm_id = await now.made("web")
        address = (await now.show(vm_id))["primary_ip"]
        for point, verdict in drawn(CUTS, STEPS_A_RUN, request.config):
            here = await now.runs_at(vm_id)
            there = "beta" if here == "alpha" else "alpha"
            cut_off = here if point in AT_SOURCE else there
            (now.site.holds / point).touch()
            task = await now.ordered(vm_id)
            async with now.site.held(cut_off, point):
                now.site.hosts[cut_off].cut(verdict)
            await trio.sleep(CUT_SECONDS)
            now.site.hosts[cut_off].cut(None)
            ended = await now.ended(task)

            assert ended["status"] in ("succeeded", "failed"), (point, ended)
            where = await now.runs_at(vm_id)
            assert where == (there if ended["status"] == "succeeded" else here), (point, ended)
            await answered(address)
            with trio.fail_after(30):
                while now.left_at(vm_id) != [where]:
                    await trio.sleep(0.1)


async def answered(address: str) -> None:
    with trio.fail_after(60):
        while (
            await trio.run_process(["ping", "-n", "-c1", "-W1", address], check=False, capture_stdout=True)
        ).returncode:
            await trio.sleep(0.1)


async def test_cut_or_cancelled_the_guest_runs_on_and_the_next_move_goes() -> None:
    async with machines() as now:
        vm_id = await now.made("web")
        alpha, beta = now.site.hosts["alpha"], now.site.hosts["beta"]
        name = f"{now.site.stack.prefix}-{vm_id}"

        async def until_it_comes() -> None:
            with trio.fail_after(60):
                while name not in beta.domains():
                    await trio.sleep(0.01)

        task = await now.ordered(vm_id)
        await until_it_comes()
        await now.client.call("POST", f"/tasks/{task}/cancel")
        began = trio.current_time()
        assert (await now.ended(task))["status"] == "cancelled"
        assert await now.runs_at(vm_id) == "alpha"
        assert "None" in alpha.virsh("domjobinfo", name)
        report_figure(f"live move cancelled: over and tidy in {trio.current_time() - began:.1f} s")

        task = await now.ordered(vm_id)
        await until_it_comes()
        await now.site.agents["beta"].kill()
        began = trio.current_time()
        with trio.fail_after(120):
            while "None" not in alpha.virsh("domjobinfo", name):
                await trio.sleep(0.05)
        report_figure(f"live move cut: no job at the source after {trio.current_time() - began:.1f} s")
        now.site.agents["beta"].start()
        assert (await now.ended(task))["status"] == "succeeded"
        assert await now.runs_at(vm_id) == "beta"

        task = await now.ordered(vm_id)
        with trio.fail_after(60):
            while name not in alpha.domains():
                await trio.sleep(0.01)
        await now.site.stack.controller.kill()
        await now.site.stack.start_controller()
        assert (await now.ended(task))["status"] == "succeeded"
        assert await now.runs_at(vm_id) == "alpha"

        task = await now.ordered(vm_id)
        await until_it_comes()
        beta.wire(False)
        with trio.fail_after(240):
            while "None" not in alpha.virsh("domjobinfo", name):
                await trio.sleep(0.1)
        beta.wire(True)
        assert (await now.ended(task))["status"] == "succeeded"
        assert await now.runs_at(vm_id) == "beta"


async def test_a_node_with_five_running_machines_is_drained() -> None:
    async with machines() as now:
        made = [await now.made(f"m-{number}") for number in range(5)]
        await now.client.call("PATCH", f"/nodes/{now.nodes['alpha']}", body={"maintenance": True})
        began = trio.current_time()
        task = await now.client.call("POST", f"/nodes/{now.nodes['alpha']}/drain", body={})
        ended = await now.ended(task["id"])
        report_figure(f"5 running machines drained live in {trio.current_time() - began:.1f} s")

        assert ended["status"] == "succeeded", ended["error_message"]
        assert [await now.runs_at(vm_id) for vm_id in made] == ["beta"] * 5
