"""A new machine is made from a copy of a guest that went on writing, and has its files."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor import LibvirtHost
from svc_nodeagent.protocol import DomainResult, DomainState, FailureCode, VmCreate, VmCreateFromCopy
from tests.nodeagent.hypervisor.builders import ADDRESS, OTHER, image, machine, network, seed, silent
from tests.nodeagent.hypervisor.test_backups import PASSWORD, copied, in_guest, restoration
from tests.support.guest import sha512_crypt

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]


async def test_it_has_the_files_of_a_guest_that_went_on_writing(
    host: LibvirtHost, demo_image: Path, data_folder: Path
) -> None:
    (data_folder / "backups" / "machines").mkdir(parents=True)
    way_in = seed(password_hash=sha512_crypt(PASSWORD))
    spec = machine(network(ADDRESS), seeded=way_in)
    await host.perform(VmCreate(machine=spec, image=image(demo_image)), silent)
    console = await in_guest(host, spec.vm_id)
    await console.run("for i in 1 2 3 4 5 6 7 8; do dd if=/dev/urandom of=kept$i bs=1024 count=512; done")
    await console.run("sha256sum kept* >sums; sync")
    await console.run("{ (while :; do dd if=/dev/urandom of=busy bs=1024 count=256; sync; done) >/dev/null 2>&1 & }")
    copy = await copied(host, spec.vm_id)

    new = machine(network(OTHER), seeded=seed(password_hash=sha512_crypt(PASSWORD)))
    order = VmCreateFromCopy(
        machine=new,
        image=image(demo_image),
        start=True,
        restoration=restoration(copy).model_copy(update={"vm_id": new.vm_id, "source_id": spec.vm_id}),
    )
    # Data that the target has changed makes no machine, and leaves nothing of one
    changed = tuple(disk.model_copy(update={"digest": "0" * 64}) for disk in copy.disks)
    damaged = order.model_copy(update={"restoration": order.restoration.model_copy(update={"disks": changed})})
    with pytest.raises(HostError, match="than was backed up"):
        await host.perform(damaged, silent)
    assert not (data_folder / "machines" / str(new.vm_id)).exists()
    unknown = order.model_copy(update={"restoration": order.restoration.model_copy(update={"copy_id": uuid4()})})
    with pytest.raises(HostError) as refused:
        await host.perform(unknown, silent)
    assert refused.value.code is FailureCode.NOT_FOUND
    assert not (data_folder / "machines" / str(new.vm_id)).exists()

    assert await host.perform(order, silent) == DomainResult(vm_id=new.vm_id, state=DomainState.RUNNING)
    theirs = await in_guest(host, new.vm_id)
    checked = await theirs.run("sha256sum -c sums")
    assert checked.count(": OK") == 8
    assert OTHER in await theirs.run("ip -4 addr")
    # The other goes on, with its own
    assert (await console.run("sha256sum -c sums")).count(": OK") == 8
    # An order that comes again, after the agent's death, finds the machine and leaves it alone
    assert await host.perform(order, silent) == DomainResult(vm_id=new.vm_id, state=DomainState.RUNNING)
    assert "written" in await theirs.run("echo written >after; cat after")
