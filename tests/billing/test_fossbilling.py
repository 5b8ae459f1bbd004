"""FOSSBilling's server manager against a whole controller, called as FOSSBilling calls it: by PHP, for a service."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from svc.cli.client import Client
from tests.cli.conftest import House, open_house

ROOT = Path(__file__).resolve().parents[2]
MANAGER = ROOT / "tools" / "billing" / "fossbilling" / "library" / "Server" / "Manager" / "Svc.php"
FOSSBILLING = Path(__file__).with_name("fossbilling.php")
DOMAIN = "shop.example.org"


@dataclass
class Fossbilling:
    """`called` is one call of a method, in a PHP of its own, which trusts the controller's authority as a server has
    to."""

    house: House
    token: str
    authority: Path

    async def called(
        self,
        method: str,
        *,
        new: object = None,
        package: object = None,
        token: str | None = None,
        trusted: bool = True,
        **account: object,
    ) -> dict[str, Any]:
        host, _, port = self.house.url.removeprefix("https://").partition(":")
        known = {"username": "shopexampleorg", "password": "Staple-7-battery", "domain": DOMAIN, "note": None}
        given = {
            "server": {"host": host, "port": port, "accesshash": token or self.token},
            "account": known | account,
            "client": {"email": "ada@example.org", "full_name": "Ada Lovelace", "company": ""},
            "package": package or {"name": "web-s", "custom": {"image": "tiny", "destroy_disks": "yes"}},
            "new": new,
        }
        trust = ["-d", f"curl.cainfo={self.authority}"] if trusted else []
        ended = await trio.run_process(
            ["php", *trust, str(FOSSBILLING), str(MANAGER), method],
            stdin=json.dumps(given).encode(),
            capture_stdout=True,
        )
        told: dict[str, Any] = json.loads(ended.stdout)
        return told

    async def taken(self, method: str, **values: Any) -> Any:
        """The answer to an order that is not refused."""
        told = await self.called(method, **values)
        assert told["error"] is None, told
        return told["answer"]

    async def machines(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.house.ok("vm", "list", "-o", "json")).json["items"]
        return found

    async def settled(self, service: str = DOMAIN) -> dict[str, Any]:
        """The service once its machine is what its state says."""
        with trio.fail_after(60):
            async with Client.open(self.house.profile) as client:
                while True:
                    await self.house.step("service watch")
                    path, query = f"/provision/by-ref/{service}", {"integration": "fossbilling"}
                    found: dict[str, Any] = await client.call("GET", path, query=query)
                    if found["settled"]:
                        return found
                    await trio.sleep(0.02)  # the task, and the node's own report


@pytest.fixture
async def fossbilling(database_url: str, tmp_path: Path) -> AsyncIterator[Fossbilling]:
    async with open_house(database_url, tmp_path) as house:
        await house.node()
        await house.image()
        for slug, memory in (("web-s", 128), ("web-l", 256)):
            sizes = ("--vcpus", "1", "--memory-mib", str(memory), "--disk-gib", "1")
            await house.ok("plan", "create", slug, "--name", slug.title(), *sizes)
        made = await house.ok("token", "create", "billing", "--scopes", "provision", "-o", "json")
        authority = tmp_path / "authority.pem"
        authority.write_text(house.profile.trusted or "")
        yield Fossbilling(house, made.json["token"], authority)


async def test_the_server_is_tested(fossbilling: Fossbilling) -> None:
    assert (await fossbilling.called("testConnection"))["answer"] is True
    assert "certificate" in (await fossbilling.called("testConnection", trusted=False))["error"]
    assert (await fossbilling.called("testConnection", token="svcvm_wrong"))["error"]


async def test_a_service_lives_from_its_creation_to_its_end(fossbilling: Fossbilling) -> None:
    assert (await fossbilling.called("createAccount"))["answer"] is True
    running = await fossbilling.settled()
    assert (running["state"], running["plan"]) == ("active", "web-s")
    assert (running["machine"]["status"], running["machine"]["name"]) == ("running", DOMAIN)
    synchronized = await fossbilling.taken("synchronizeAccount")
    assert (synchronized["ip"], synchronized["suspended"]) == (running["machine"]["primary_ip"], False)

    assert await fossbilling.taken("suspendAccount", note="unpaid")
    suspended = await fossbilling.settled()
    assert (suspended["state"], suspended["state_reason"]) == ("suspended", "unpaid")
    assert (await fossbilling.taken("synchronizeAccount"))["suspended"] is True
    assert await fossbilling.taken("unsuspendAccount")
    assert (await fossbilling.settled())["machine"]["status"] == "running"

    larger = {"name": "Large", "custom": {"plan": "web-l", "image": "tiny"}}
    assert await fossbilling.taken("changeAccountPackage", new=larger)
    with trio.fail_after(60):
        while (await fossbilling.settled())["machine"]["task_id"] is not None:
            await trio.sleep(0.05)  # the resize
    assert [(vm["memory_mib"], vm["plan_name"]) for vm in await fossbilling.machines()] == [(256, "Web-L")]
    assert await fossbilling.taken("changeAccountPassword", new="Another-Horse-9")

    assert await fossbilling.taken("cancelAccount")
    assert (await fossbilling.settled())["state"] == "terminated"
    assert await fossbilling.machines() == []
    assert await fossbilling.taken("cancelAccount")
    assert "no such service" in (await fossbilling.called("suspendAccount"))["error"]

    # Cancelled by mistake, and created again: another machine under the same domain
    assert await fossbilling.taken("createAccount")
    assert (await fossbilling.settled(f"{DOMAIN}-2"))["state"] == "active"
    assert await fossbilling.taken("suspendAccount")


async def test_a_storm_of_repeated_creations_makes_one_machine(fossbilling: Fossbilling) -> None:
    """Each attempt has another password, as FOSSBilling makes one for each."""
    errors: list[str | None] = []

    async def create(number: int) -> None:
        told = await fossbilling.called("createAccount", password=f"Staple-7-battery-{number}")
        errors.append(told["error"])

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(create, number)

    assert len(await fossbilling.machines()) == 1
    await fossbilling.settled()
    later = await fossbilling.called("createAccount", password="Staple-7-battery-x")
    assert (later["answer"], len(await fossbilling.machines())) == (True, 1)
    # Those that came while the first was being taken, with a password of their own, are refused, and come again
    assert None in errors
    assert all(error is None or "used for a different request" in error for error in errors), errors


async def test_what_the_controller_refuses_is_told_and_leaves_nothing(fossbilling: Fossbilling) -> None:
    refused = await fossbilling.called("createAccount", password="short")
    assert "password" in refused["error"].lower()
    lengthy = {"name": "web-s", "custom": {"image": "tiny", "user_data": "#" * 32_769}}
    assert "user_data" in (await fossbilling.called("createAccount", package=lengthy))["error"]
    for method, new in (
        ("changeAccountUsername", "root"),
        ("changeAccountDomain", "b.example"),
        ("changeAccountIp", "::1"),
    ):
        assert (await fossbilling.called(method, new=new))["error"]
    assert await fossbilling.machines() == []


async def test_the_customer_is_led_to_the_machine_by_a_link(fossbilling: Fossbilling) -> None:
    without = await fossbilling.called("getLoginUrl")
    assert without["answer"] == f"{fossbilling.house.url}/"
    assert without["log"]
    await fossbilling.called("createAccount")
    service = await fossbilling.settled()

    link = await fossbilling.taken("getLoginUrl")

    context = httpx.create_ssl_context()
    context.load_verify_locations(cadata=fossbilling.house.profile.trusted)
    async with httpx.AsyncClient(verify=context) as browser:
        led = await browser.get(link)
    assert (led.status_code, led.headers["location"]) == (303, f"/#/machines/{service['machine']['id']}")
