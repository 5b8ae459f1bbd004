"""Renders what a guest reads when it starts from the machine's record: a NoCloud seed, which is an ISO 9660 disk
labelled `cidata`.

Guests apply the account and the name at their first boot, and the network at every boot. Sources: cloud-init's NoCloud
data source, its network configuration version 1, and its events (`updates`). The three files are JSON, so YAML.

Invariants: the guest never gets a password itself, only the password's hash by SHA-512 crypt. The hash is on the host
from creation until the guest has booted once (its agent connected, or it shut down in order), and is then removed from
the seed. The seed keeps its instance id, so that nothing is applied twice. An existing seed is overwritten in place: a
running guest's QEMU holds that file open, and the guest may restart by itself. A seed whose writing was interrupted by
a crash is written again before the host starts the guest, and when the operation is repeated.

Why: docs/decisions/0033-guest-networks-on-the-host.md.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import TypeAlias

from svc_nodeagent.hypervisor.files import MachineRecord, in_thread, put_in_place
from svc_nodeagent.hypervisor.guest_network import gateways, in_order
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.protocol import GuestAddress, NicSpec

Json: TypeAlias = "bool | int | str | list[Json] | dict[str, Json] | None"

WORKSHOP = ".seed"
"""The folder next to the seed in which the seed is assembled. Only root can read it, because it contains the password's
hash. A machine has one seed at a time."""
_CONTENT = "content"


async def write_seed(record: MachineRecord, password_hash: str | None, path: Path, owner: tuple[int, int]) -> None:
    """Render the seed to `path`, readable by QEMU's user and nobody else."""
    await write_iso(render(record, password_hash), "cidata", path, owner)


async def write_iso(files: dict[str, str], label: str, path: Path, owner: tuple[int, int]) -> None:
    """These files on a disk of this label, readable by QEMU's user and nobody else."""
    with _workshop(path.with_name(WORKSHOP)) as folder:
        content_folder, temporary = folder / _CONTENT, folder / path.name
        content_folder.mkdir()
        for name, content in files.items():
            await in_thread((content_folder / name).write_bytes, content.encode())
        await run_program(
            "genisoimage", "-quiet", "-output", temporary, "-volid", label, "-joliet", "-rock", content_folder
        )
        await in_thread(_put, temporary, path, owner)


def _put(temporary: Path, path: Path, owner: tuple[int, int]) -> None:
    """Write the new content over the old file, padded to the old file's length: a QEMU that has the file open relies on
    this length. If there is no old file, put the new one in place."""
    try:
        descriptor = os.open(path, os.O_WRONLY)
    except FileNotFoundError:
        put_in_place(temporary, path, mode=0o400, owner=owner)
        return
    with open(descriptor, "wb") as seed:
        content = temporary.read_bytes()
        seed.write(content.ljust(os.fstat(descriptor).st_size, b"\0"))
        os.fchmod(descriptor, 0o400)
        os.fchown(descriptor, *owner)
        seed.flush()
        os.fsync(descriptor)


@contextmanager
def _workshop(folder: Path) -> Iterator[Path]:
    """An empty folder for the length of the block. What a killed process has left there is removed, since it holds the
    password's hash."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def render(record: MachineRecord, password_hash: str | None) -> dict[str, str]:
    """The seed's files by name. The owner's user-data is passed on unchanged; our own is then passed as vendor-data, of
    which cloud-init uses only what the owner's user-data does not set."""
    seed = record.seed
    meta_data: Json = {"instance-id": seed.instance_id, "local-hostname": seed.hostname}
    files = {
        "meta-data": json.dumps(meta_data, indent=1) + "\n",
        "user-data": "#cloud-config\n" + json.dumps(_cloud_config(record, password_hash), indent=1) + "\n",
        "network-config": json.dumps(_network_config(record), indent=1) + "\n",
    }
    if seed.user_data is not None:
        files |= {"user-data": seed.user_data, "vendor-data": files["user-data"]}
    return files


def _cloud_config(record: MachineRecord, password_hash: str | None) -> Json:
    seed, account = record.seed, record.seed.account
    # `hashed_passwd` also sets the password of an account that already exists in the image; `passwd` would be ignored
    # for such an account. An account with neither a password nor a key is locked, by the image or by cloud-init's
    # default.
    user: dict[str, Json] = {"name": account.name, "ssh_authorized_keys": list(account.ssh_keys)}
    if password_hash is not None:
        user |= {"hashed_passwd": password_hash, "lock_passwd": False}
    data: dict[str, Json] = {
        "hostname": seed.hostname,
        "users": [user],
        "ssh_pwauth": seed.ssh_password_login,
        "disable_root": account.name != "root",
        "updates": {"network": {"when": ["boot-new-instance", "boot"]}},
    }
    if account.name != "root":
        if account.sudo:
            user["sudo"] = "ALL=(ALL) NOPASSWD:ALL"
        # It is not known here which shells the image has, and an account whose login shell is missing is locked out. So
        # bash is set only if it exists.
        shell = 'test -x /bin/bash && usermod --shell /bin/bash "$0" || true'
        data["runcmd"] = [["sh", "-c", shell, account.name]]
    return data


def _network_config(record: MachineRecord) -> Json:
    """The network configuration in version 1: from a subnet's `gateway` every renderer of cloud-init makes a default
    route through the NIC, for the family of the gateway. Version 2 has no form that all of them understand: only
    netplan reads a route's `on-link`, and it accepts a `gateway4` only inside the address's own network."""
    return {
        "version": 1,
        "config": [
            _card(nic, f"eth{index}", leads_outside=index == 0) for index, nic in enumerate(record.network.nics)
        ],
    }


def _card(nic: NicSpec, name: str, *, leads_outside: bool) -> Json:
    used = list(gateways(nic).values()) if leads_outside else []
    subnets = [_subnet(address, has_gateway=address in used) for address in in_order(nic)]
    if nic.nameservers and subnets:
        subnets[0]["dns_nameservers"] = list(nic.nameservers)
    return {
        "type": "physical",
        "name": name,
        "mac_address": nic.mac,
        "mtu": nic.mtu,
        # Router advertisements are not accepted: a router next to a bridged guest does not know from which addresses
        # the guest may send.
        "accept-ra": False,
        "subnets": list(subnets),
    }


def _subnet(address: GuestAddress, *, has_gateway: bool) -> dict[str, Json]:
    subnet: dict[str, Json] = {"type": "static", "address": str(address.interface)}
    if has_gateway:
        subnet["gateway"] = address.gateway
        if not _is_on_link(address):
            # A route to the gateway itself, via nothing. cloud-init says that such a gateway is on the link to netplan
            # from 23.1 on, to networkd from 24.2 on.
            subnet["routes"] = [
                {
                    "network": f"{address.gateway}/{address.interface.max_prefixlen}",
                    "gateway": "0.0.0.0" if address.interface.version == 4 else "::",  # noqa: S104  (no gateway)
                }
            ]
    return subnet


def _is_on_link(address: GuestAddress) -> bool:
    """Whether the guest reaches the gateway without a further route: because the gateway lies in the address's own
    network, or is a link-local IPv6 address."""
    gateway = ip_address(address.gateway)
    return gateway in address.interface.network or (gateway.version == 6 and gateway.is_link_local)
