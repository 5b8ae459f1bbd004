"""The demo image, booted under TCG: what someone at its console, its power button or its agent would notice."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio

from tests.support.guest import MAC, Guest, MachineType, Seed, sha512_crypt

pytestmark = [pytest.mark.system, pytest.mark.isolated]

BOOT = 300.0
ANSWER = 120.0
"""Guards of an emulated guest, which boots in ten seconds on two idle cores and shares them with two other lanes."""

STATIC: Mapping[str, object] = {
    "version": 2,
    "ethernets": {
        "nic0": {
            "match": {"macaddress": MAC},
            "set-name": "eth0",
            "dhcp4": False,
            "addresses": ["10.0.2.77/32", "fd5e::77/64"],
            "routes": [{"to": "0.0.0.0/0", "via": "10.0.2.2", "on-link": True}],
            "nameservers": {"addresses": ["10.0.2.3"], "search": ["example.org"]},
        }
    },
}


def root_with(password: str, **more: object) -> dict[str, object]:
    root = {"name": "root", "lock_passwd": False, "hashed_passwd": sha512_crypt(password)}
    return {"hostname": "demo-1", "ssh_pwauth": True, "disable_root": False, "users": ["default", root]} | more


async def test_a_first_boot_applies_the_seed_and_only_the_chosen_password_opens_it(
    demo_image: Path, tmp_path: Path
) -> None:
    seed = Seed("first", root_with("chosen: by me"), STATIC).write(tmp_path / "seed.iso")
    async with Guest.started(demo_image, seed, tmp_path) as guest:
        console = guest.console
        await console.expect("Linux version", BOOT)
        await console.expect(r"svc-seed: address 10\.0\.2\.77/32 on eth0", BOOT)
        await console.expect("svc-seed: hostname demo-1", ANSWER)
        await console.expect("demo-1 login: $", ANSWER)
        assert not await console.try_to_log_in("root", "another", within=ANSWER)
        await console.log_in("root", "chosen: by me", within=ANSWER)
        assert "inet 10.0.2.77/32" in await console.run("ip -4 addr show eth0")
        assert "fd5e::77/64" in await console.run("ip -6 addr show eth0")
        assert "default via 10.0.2.2" in await console.run("ip route")
        assert await console.run("cat /etc/resolv.conf") == "search example.org\nnameserver 10.0.2.3\n"
        assert "0% packet loss" in await console.run("ping -c 1 10.0.2.2")
        # the root took the disk it was given: 4 GiB, of an image of 97 MiB
        assert int(await console.run("df -m / | awk 'END { print $2 }'")) > 3500
        assert "root" in await console.run("su debian -c 'sudo id -un'")
        await console.type("dbclient -y root@127.0.0.1 'echo over $SSH_CONNECTION'")
        await console.expect("password: ?$", ANSWER)
        await console.type("chosen: by me")
        await console.expect(r"^over 127\.0\.0\.1", ANSWER)


async def test_a_password_set_by_the_agent_outlives_a_restart_and_ends_the_old_one(
    demo_image: Path, tmp_path: Path
) -> None:
    seed = Seed("agent", root_with("old one"), STATIC).write(tmp_path / "seed.iso")
    async with Guest.started(demo_image, seed, tmp_path) as guest:
        new = base64.b64encode(b"new:one").decode()
        await guest.call_agent(
            "guest-set-user-password", {"username": "root", "password": new, "crypted": False}, within=BOOT
        )
        interfaces = await guest.call_agent("guest-network-get-interfaces", within=ANSWER)
        assert MAC in str(interfaces)
        assert "10.0.2.77" in str(interfaces)
        await guest.agent.send("guest-shutdown", {"mode": "reboot"})
        await guest.console.expect("Linux version", BOOT)
        await guest.console.expect("svc-seed: instance agent was set up before", BOOT)
        await guest.console.expect("login: $", ANSWER)
        assert not await guest.console.try_to_log_in("root", "old one", within=ANSWER)
        await guest.console.log_in("root", "new:one", within=ANSWER)
        hashed = base64.b64encode(sha512_crypt("third").encode()).decode()
        await guest.call_agent(
            "guest-set-user-password", {"username": "root", "password": hashed, "crypted": True}, within=ANSWER
        )
        await guest.agent.send("guest-shutdown", {"mode": "powerdown"})
        assert await guest.ended(within=ANSWER) == 0
    async with Guest.started(demo_image, seed, tmp_path) as guest:
        await guest.console.log_in("root", "third", within=BOOT)


async def test_the_power_button_turns_a_guest_without_a_seed_off(demo_image: Path, tmp_path: Path) -> None:
    async with Guest.started(demo_image, None, tmp_path) as guest:
        await guest.console.expect("svc-seed: no disk is labelled cidata", BOOT)
        await guest.console.expect("demo login: $", BOOT)
        assert await guest.press_power_button(within=ANSWER) == 0


async def test_what_the_seed_asks_and_the_guest_cannot_do_is_said(demo_image: Path, tmp_path: Path) -> None:
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIH0000000000000000000000000000000000000000000 someone with a comment"
    user_data: dict[str, object] = {
        "fqdn": "web.example.org",
        "packages": ["nginx"],
        "users": [
            {"name": "alice", "sudo": "ALL=(ALL) NOPASSWD:ALL", "ssh_authorized_keys": [key]},
            {"name": "Bad Name"},
        ],
        "chpasswd": {"expire": False, "users": [{"name": "alice", "password": "text one", "type": "text"}]},
        "runcmd": [["sh", "-c", "echo ran > /root/mark"], "echo twice >> /root/mark"],
    }
    nic = {"match": {"macaddress": MAC.upper()}, "dhcp4": True, "wakeonlan": True}
    network = {"version": 2, "ethernets": {"eth0": nic}}
    seed = Seed("refusals", user_data, network).write(tmp_path / "seed.iso")
    async with Guest.started(demo_image, seed, tmp_path, machine=MachineType.PC) as guest:
        await guest.console.expect("svc-seed: instance refusals is set up", BOOT)
        said = guest.console.transcript
        assert "svc-seed: not applied: packages" in said
        assert "svc-seed: not applied: users/1 (its name is not a user name)" in said
        assert "svc-seed: not applied: ethernets/eth0/wakeonlan" in said
        assert "svc-seed: 1 SSH key(s) of alice" in said
        await guest.console.log_in("alice", "text one", within=ANSWER)
        assert await guest.console.run("cat ~/.ssh/authorized_keys") == key + "\n"
        assert await guest.console.run("sudo cat /root/mark") == "ran\ntwice\n"
        assert await guest.console.run("hostname") == "web\n"
        await guest.console.run("until ip -4 addr show eth0 | grep -q 'inet 10.0.2'; do usleep 100000; done")
        assert await guest.press_power_button(within=ANSWER) == 0


SCRIPT = "#!/bin/sh\necho ran by $(id -un) > /root/mark\n"
CONFIG: Mapping[str, object] = {"hostname": "theirs", "runcmd": ["echo ran by $(id -un) > /root/mark"]}


@pytest.mark.parametrize(("user_data", "called"), [(SCRIPT, "ours"), (CONFIG, "theirs")], ids=["script", "config"])
async def test_beside_the_owners_user_data_the_account_is_set_up_all_the_same(
    demo_image: Path, tmp_path: Path, user_data: Mapping[str, object] | str, called: str
) -> None:
    vendor_data = root_with("chosen: by me", hostname="ours")
    seed = Seed("beside", user_data, STATIC, vendor_data).write(tmp_path / "seed.iso")
    async with Guest.started(demo_image, seed, tmp_path) as guest:
        await guest.console.expect("svc-seed: instance beside is set up", BOOT)
        await guest.console.log_in("root", "chosen: by me", within=ANSWER)
        assert await guest.console.run("hostname") == f"{called}\n"
        assert await guest.console.run("cat /root/mark") == "ran by root\n"
        assert await guest.console.run("ls -1 /run/svc-seed") == "meta-data\nnetwork-config\nresolv\n"


async def test_the_checksum_beside_the_image_is_its_own(demo_image: Path) -> None:
    await trio.run_process(["sha256sum", "--check", "--strict", f"{demo_image.name}.sha256"], cwd=demo_image.parent)
    assert demo_image.stat().st_size < 40_000_000
