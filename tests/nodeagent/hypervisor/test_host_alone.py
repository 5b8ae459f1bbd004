"""One machine, or one check, that cannot be looked at keeps the host from looking at no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from uuid import UUID, uuid4

import libvirt
import pytest
import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor import LibvirtHost, Naming, inventory, preflight
from svc_nodeagent.hypervisor.acceleration import Acceleration, DeviceAccess
from svc_nodeagent.hypervisor.connection import Connection, ConnectionLost
from svc_nodeagent.hypervisor.files import Folders
from svc_nodeagent.hypervisor.machine_events import MachineEvents
from svc_nodeagent.hypervisor.network.apply import HostNetwork
from svc_nodeagent.hypervisor.traffic import HostTraffic
from svc_nodeagent.protocol import CheckStatus, DomainState, FailureCode, ObservedDomain
from tests.nodeagent.hypervisor.test_connection import DOMAIN, Heard, connected
from tests.nodeagent.hypervisor.test_moments import refused

T = TypeVar("T")


async def test_a_machine_that_went_off_meanwhile_keeps_no_other_from_being_looked_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = uuid4(), uuid4()
    attached: list[UUID] = []

    async def unreachable(_: str) -> trio.abc.Stream:
        raise OSError

    async def domains(*_: object) -> tuple[ObservedDomain, ...]:
        await trio.lowlevel.checkpoint()
        return tuple(
            ObservedDomain(name=str(vm_id), uuid=vm_id, vm_id=vm_id, state=DomainState.RUNNING, vcpus=1, memory_mib=256)
            for vm_id in (first, second)
        )

    async def attach(self: MachineEvents, vm_id: UUID) -> None:
        await trio.lowlevel.checkpoint()
        if vm_id == first:
            raise HostError(FailureCode.CONFLICT, "The machine is not running, so it has no console.")
        attached.append(vm_id)

    async def nothing(*_: object) -> str:
        await trio.lowlevel.checkpoint()
        return "<domain/>"

    naming = Naming()
    host = LibvirtHost(
        Folders(tmp_path),
        naming,
        HostNetwork(naming, {}),
        cast(HostTraffic, None),
        unreachable,
        "test:///default",
        None,
        (),
        None,
    )
    monkeypatch.setattr(inventory, "domains", domains)
    monkeypatch.setattr(MachineEvents, "_read_line", attach)
    monkeypatch.setattr(host._machines, "keep_defined", nothing)
    monkeypatch.setattr(host._guests, "domain_xml", nothing)

    await host._events.compare()

    assert attached == [second]


class Listing:
    """Libvirt's test driver; `after` gets the domains that it lists before anything is asked of one."""

    def __init__(self, connection: Connection, after: Callable[[list[Any]], list[Any]]) -> None:
        self._connection = connection
        self._after = after

    async def call(self, work: Callable[[Any], T], *, name: str) -> T:
        def listed(libvirt_: Any) -> T:
            return work(SimpleNamespace(listAllDomains=lambda: self._after(libvirt_.listAllDomains())))

        return await self._connection.call(listed, name=name)


async def test_a_guest_that_vanishes_while_guests_are_listed_is_left_out_of_the_inventory(tmp_path: Path) -> None:
    transient = "<domain type='test'><name>transient</name><memory>65536</memory><os><type>hvm</type></os></domain>"

    def destroy_it(listed: list[Any]) -> list[Any]:
        assert sorted(domain.name() for domain in listed) == [DOMAIN, "transient"]
        next(domain for domain in listed if domain.name() == "transient").destroy()
        return listed

    async with connected(Heard()) as connection:
        await connection.call(lambda libvirt_: libvirt_.createXML(transient))
        domains = await inventory.domains(
            cast(Connection, Listing(connection, destroy_it)), Naming(), Folders(tmp_path)
        )

    assert [(domain.name, domain.state) for domain in domains] == [(DOMAIN, DomainState.RUNNING)]


async def test_an_inventory_never_omits_a_guest_that_libvirt_fails_to_describe(tmp_path: Path) -> None:
    """The controller would take it for one that is gone."""

    def broken(listed: list[Any]) -> list[Any]:
        def state() -> None:
            raise refused("cannot acquire state change lock", libvirt.VIR_ERR_OPERATION_TIMEOUT)

        return [*listed, SimpleNamespace(UUIDString=lambda: str(uuid4()), name=lambda: "broken", state=state)]

    async with connected(Heard()) as connection:
        with pytest.raises(HostError, match="state change lock"):
            await inventory.domains(cast(Connection, Listing(connection, broken)), Naming(), Folders(tmp_path))


@pytest.mark.parametrize(
    "error", [PermissionError(1, "Operation not permitted"), OSError(16, "Device or resource busy")]
)
async def test_a_device_that_the_kernel_refuses_fails_its_own_check_and_the_others_are_made(
    error: OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refused(Acceleration):
        async def access(self) -> DeviceAccess:
            await trio.lowlevel.checkpoint()
            return DeviceAccess.DENIED

        async def answers(self) -> bool:
            await trio.lowlevel.checkpoint()
            raise error

    class Away:
        async def call(self, *_: object, **__: object) -> object:
            await trio.lowlevel.checkpoint()
            raise ConnectionLost("it is away")

    async def nothing_there(*_: object, **__: object) -> tuple[int, bytes, str]:
        await trio.lowlevel.checkpoint()
        return 1, b"", ""

    monkeypatch.setattr(preflight, "try_program", nothing_there)
    checks = await preflight.preflight(
        connection=cast(Connection, Away()),
        acceleration=Refused(tmp_path / "accelerator.json", device=tmp_path / "kvm"),
        folders=Folders(tmp_path),
        restore_failure=None,
        bridge=None,
    )

    found = {check.name: check for check in checks}
    assert {"disk", "storage", "backups", "rescue", "firmware"} <= found.keys()
    assert found["kvm"].status is CheckStatus.FAILED
    assert str(error) in found["kvm"].message
