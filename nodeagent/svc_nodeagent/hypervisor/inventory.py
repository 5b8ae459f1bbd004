"""The inventory of the host: hardware, capacity and domains. It is queried from the host each time, and never derived
from records."""

from __future__ import annotations

import json
import os
import platform
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID
from xml.etree import ElementTree

import libvirt

from svc_nodeagent.enrol import host_uuid
from svc_nodeagent.hypervisor.acceleration import Acceleration
from svc_nodeagent.hypervisor.connection import PATIENT, Connection, Libvirt, version_text
from svc_nodeagent.hypervisor.domains import domain_cause, domain_state
from svc_nodeagent.hypervisor.files import GIB, Folders, in_thread
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network.roads import ProtectedAddressFinder
from svc_nodeagent.hypervisor.platforms import platform_features
from svc_nodeagent.hypervisor.preflight import network_features
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.protocol import Capacity, NodeFacts, ObservedDomain
from svc_nodeagent.version import agent_version

UNKNOWN = "unknown"


async def capacity(folders: Folders) -> Capacity:
    return await in_thread(_capacity, folders.root)


@dataclass(frozen=True)
class Emulator:
    """The facts about the emulator that only libvirt knows. The query is slow if libvirt probes QEMU for it (see
    preflight's check `kvm`), so the answer is cached while libvirtd runs."""

    libvirt: str
    hypervisor: str
    machine_types: tuple[str, ...]


NO_EMULATOR = Emulator(UNKNOWN, UNKNOWN, ())


async def emulator(connection: Connection) -> Emulator:
    return await connection.call(_emulator, name="virConnectGetCapabilities", timeout=PATIENT)


async def facts(
    emulator: Emulator,
    acceleration: Acceleration,
    naming: Naming,
    bridge: str | None = None,
    controller: str | None = None,
) -> NodeFacts:
    verdict = await acceleration.verdict()
    features = await network_features(bridge)
    platforms = await in_thread(platform_features)
    kept = await ProtectedAddressFinder(naming, controller).find()
    return NodeFacts(
        hostname=socket.gethostname(),
        host_uuid=await in_thread(host_uuid),
        agent_version=agent_version(),
        os=await in_thread(_os_name),
        kernel=platform.release(),
        libvirt=emulator.libvirt,
        hypervisor=emulator.hypervisor,
        cpu_model=await in_thread(_cpu_model),
        accelerator=verdict.accelerator.value,
        machine_types=emulator.machine_types,
        network_features=features.found,
        network_lacks=features.lacks | kept.as_lacks(),
        host_addresses=await host_addresses(naming),
        platform_features=platforms.found,
        platform_lacks=dict(platforms.lacks),
    )


async def host_addresses(naming: Naming) -> tuple[str, ...]:
    """The host's own addresses, with their prefixes; without link-local ones, and without those that the host has at
    guests' taps as their gateway."""
    links = json.loads(await run_program("ip", "-json", "address", "show", "scope", "global") or b"[]")
    return tuple(
        sorted(
            f"{address['local']}/{address['prefixlen']}"
            for link in links
            if not naming.is_tap(link.get("ifname", ""))
            for address in link.get("addr_info", ())
            if "local" in address  # addresses that the scope filter leaves out are listed as empty objects
        )
    )


async def domains(connection: Connection, naming: Naming, folders: Folders) -> tuple[ObservedDomain, ...]:
    """Every domain of the host, ours and others'."""

    def observe(connected: Libvirt) -> tuple[ObservedDomain, ...]:
        found = (_observed(domain, naming, folders) for domain in connected.listAllDomains())
        return tuple(sorted((domain for domain in found if domain is not None), key=lambda domain: domain.name))

    return await connection.call(observe, name="virConnectListAllDomains")


def retained_disks(folders: Folders) -> tuple[str, ...]:
    return tuple(f"retained/{path.parent.name}/{path.name}" for path in sorted(folders.retained.glob("*/disk-*.qcow2")))


def _observed(domain: Any, naming: Naming, folders: Folders) -> ObservedDomain | None:
    """The domain as the inventory has it; None if it has vanished since it was listed."""
    uuid, name = UUID(domain.UUIDString()), domain.name()
    try:
        state, reason = domain.state()
        info = domain.info()
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
            raise
        return None
    vm_id = naming.machine(uuid, name)
    return ObservedDomain(
        uuid=uuid,
        name=name,
        vm_id=vm_id,
        state=domain_state(state, reason),
        cause=domain_cause(state, reason),
        vcpus=info[3],
        memory_mib=info[1] // 1024,
        rescue=vm_id is not None and folders.in_rescue(vm_id),
    )


def _capacity(folder: Path) -> Capacity:
    memory = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        memory[name] = int(value.split()[0]) // 1024
    filesystem = os.statvfs(folder)
    return Capacity(
        cpus=os.cpu_count() or 1,
        memory_mib=memory["MemTotal"],
        memory_free_mib=memory["MemAvailable"],
        disk_gib=filesystem.f_blocks * filesystem.f_frsize / GIB,
        disk_free_gib=filesystem.f_bavail * filesystem.f_frsize / GIB,
        load_1m=os.getloadavg()[0],
    )


def _emulator(connected: Libvirt) -> Emulator:
    capabilities = ElementTree.fromstring(connected.getCapabilities())  # noqa: S314 - from libvirt itself
    machines = capabilities.findall("./guest/arch[@name='x86_64']/machine")
    return Emulator(
        libvirt=version_text(connected.getLibVersion()),
        hypervisor=f"QEMU {version_text(connected.getVersion())}",
        machine_types=tuple(sorted({machine.text for machine in machines if machine.text})),
    )


def _os_name() -> str:
    for line in Path("/etc/os-release").read_text().splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return UNKNOWN


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return UNKNOWN
