"""The WHMCS module against a whole controller, called as WHMCS calls it: by PHP, with what WHMCS knows of a service."""

from __future__ import annotations

import json
import re
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
MODULE = ROOT / "tools" / "billing" / "whmcs" / "modules" / "servers" / "svc" / "svc.php"
WHMCS = Path(__file__).with_name("whmcs.php")


@dataclass
class Whmcs:
    """`called` is one call of a function of the module, in a PHP of its own, as each request to WHMCS is."""

    house: House
    token: str

    def params(self, service: int = 4711, **changes: object) -> dict[str, Any]:
        host, _, port = self.house.url.removeprefix("https://").partition(":")
        values: dict[str, Any] = {
            "serverhostname": host,
            "serverip": "",
            "serverport": port,
            "serverpassword": self.token,
            "serveraccesshash": self.house.profile.trusted,
            "serverid": 1,
            "serviceid": service,
            "domain": f"web-{service}",
            "password": "",
            "suspendreason": "",
            "clientsdetails": {"firstname": "Ada", "lastname": "L", "email": "ada@example.org", "companyname": ""},
            "configoption1": "web-s",
            "configoption2": "tiny",
            "configoption3": "user_sudo",
            "configoption4": "",
            "configoption5": "on",
            "configoptions": {},
            "customfields": {},
        }
        return values | changes

    async def called(self, function: str, hostings: tuple[int, ...] = (), **params: Any) -> dict[str, Any]:
        given = json.dumps({"params": self.params(**params), "hostings": hostings})
        ended = await trio.run_process(
            ["php", str(WHMCS), str(MODULE), function], stdin=given.encode(), capture_stdout=True
        )
        told: dict[str, Any] = json.loads(ended.stdout)
        return told

    async def answer(self, function: str, **params: Any) -> Any:
        return (await self.called(function, **params))["answer"]

    async def machines(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.house.ok("vm", "list", "-o", "json")).json["items"]
        return found

    async def settled(self, service: str = "4711") -> dict[str, Any]:
        """The service once its machine is what its state says."""
        with trio.fail_after(60):
            async with Client.open(self.house.profile) as client:
                while True:
                    await self.house.step("service watch")
                    found: dict[str, Any] = await client.call(
                        "GET", f"/provision/by-ref/{service}", query={"integration": "whmcs"}
                    )
                    if found["settled"]:
                        return found
                    await trio.sleep(0.02)  # the task, and the node's own report


@pytest.fixture
async def whmcs(database_url: str, tmp_path: Path) -> AsyncIterator[Whmcs]:
    async with open_house(database_url, tmp_path) as house:
        await house.node()
        await house.image()
        for slug, memory in (("web-s", 128), ("web-l", 256)):
            sizes = ("--vcpus", "1", "--memory-mib", str(memory), "--disk-gib", "1")
            await house.ok("plan", "create", slug, "--name", slug.title(), *sizes)
        made = await house.ok("token", "create", "billing", "--scopes", "provision", "-o", "json")
        yield Whmcs(house, made.json["token"])


async def test_the_server_is_tested_and_offers_its_plans_and_images(whmcs: Whmcs) -> None:
    assert await whmcs.answer("TestConnection") == {"success": True, "error": ""}
    plans = await whmcs.answer("PlanLoader")
    assert (plans["web-s"], plans["web-l"]) == ("Web-S", "Web-L")
    assert await whmcs.answer("ImageLoader") == {"tiny": "Tiny"}

    strange = await whmcs.answer("TestConnection", serverpassword="svcvm_wrong")
    untrusted = await whmcs.answer("TestConnection", serveraccesshash="")
    assert (strange["success"], untrusted["success"]) == (False, False)
    assert "certificate" in untrusted["error"]


async def test_a_service_lives_from_its_creation_to_its_end(whmcs: Whmcs) -> None:
    created = await whmcs.called("CreateAccount")
    running = await whmcs.settled()
    assert created["answer"] == "success"
    assert created["saved"].keys() == {"Username", "Password", "Dedicated IP"}
    assert (created["saved"]["Username"], created["saved"]["Dedicated IP"]) == (
        "tiny",
        running["machine"]["primary_ip"],
    )
    assert (running["state"], running["machine"]["status"], running["machine"]["name"]) == (
        "active",
        "running",
        "web-4711",
    )

    assert await whmcs.answer("SuspendAccount", suspendreason="unpaid", configoption4="power_off") == "success"
    suspended = await whmcs.settled()
    assert (suspended["state"], suspended["state_reason"]) == ("suspended", "unpaid")
    assert suspended["machine"]["status"] == "stopped"
    assert await whmcs.answer("UnsuspendAccount") == "success"
    assert (await whmcs.settled())["machine"]["status"] == "running"

    assert await whmcs.answer("ChangePackage", configoption1="web-l") == "success"
    with trio.fail_after(60):
        while (await whmcs.settled())["machine"]["task_id"] is not None:
            await trio.sleep(0.05)  # the resize
    assert [(vm["memory_mib"], vm["plan_name"]) for vm in await whmcs.machines()] == [(256, "Web-L")]
    assert await whmcs.answer("ChangePassword", password="Another-Horse-9") == "success"

    assert await whmcs.answer("TerminateAccount") == "success"
    assert (await whmcs.settled())["state"] == "terminated"
    assert await whmcs.machines() == []
    again = [await whmcs.answer(function) for function in ("TerminateAccount", "SuspendAccount")]
    assert again[0] == "success"
    assert "no such service" in again[1]


async def test_what_was_terminated_is_created_again_as_another_machine(whmcs: Whmcs) -> None:
    await whmcs.called("CreateAccount")
    await whmcs.settled()
    await whmcs.called("TerminateAccount")
    await whmcs.settled()

    created = await whmcs.called("CreateAccount")

    assert created["answer"] == "success"
    assert (await whmcs.settled("4711-2"))["state"] == "active"
    assert await whmcs.answer("SuspendAccount") == "success"
    assert (await whmcs.settled("4711-2"))["state"] == "suspended"


async def test_a_storm_of_repeated_creations_makes_one_machine(whmcs: Whmcs) -> None:
    answers: list[dict[str, Any]] = []

    async def create() -> None:
        answers.append(await whmcs.called("CreateAccount"))

    async with trio.open_nursery() as nursery:
        for _ in range(12):
            nursery.start_soon(create)

    assert {each["answer"] for each in answers} == {"success"}
    assert len({each["saved"]["Password"] for each in answers}) == 1
    assert len(await whmcs.machines()) == 1
    later = await whmcs.called(
        "CreateAccount", clientsdetails=whmcs.params()["clientsdetails"] | {"lastname": "Lovelace"}
    )
    assert (later["answer"], len(await whmcs.machines())) == ("success", 1)


async def test_a_refused_order_is_told_to_the_operator_and_leaves_nothing(whmcs: Whmcs) -> None:
    refused = await whmcs.answer("CreateAccount", configoption1="none")
    lengthy = await whmcs.answer("CreateAccount", configoption6="#" * 32_769)

    assert "plan" in refused
    assert "user_data" in lengthy
    assert await whmcs.machines() == []
    assert await whmcs.answer("CreateAccount") == "success"


async def test_the_customer_is_led_to_the_machine_by_a_link(whmcs: Whmcs) -> None:
    await whmcs.called("CreateAccount")
    service = await whmcs.settled()

    link = await whmcs.answer("ServiceSingleSignOn")

    context = httpx.create_ssl_context()
    context.load_verify_locations(cadata=whmcs.house.profile.trusted)
    async with httpx.AsyncClient(verify=context) as browser:
        led = await browser.get(link["redirectTo"])
    assert (link["success"], led.status_code) == (True, 303)
    assert led.headers["location"] == f"/#/machines/{service['machine']['id']}"
    assert "svcvm_session" in led.headers["set-cookie"]


async def test_usage_is_written_for_each_service_that_there_is(whmcs: Whmcs) -> None:
    async with Client.open(whmcs.house.profile) as client:
        [plan] = [each for each in (await client.call("GET", "/plans"))["items"] if each["slug"] == "web-s"]
        wanted = {"traffic_gib": 5, "traffic_direction": "both", "traffic_action": "report"}
        await client.call("PUT", f"/plans/{plan['id']}/traffic", body=wanted)
    await whmcs.called("CreateAccount")
    await whmcs.settled()

    told = await whmcs.called("UsageUpdate", hostings=(4711, 99))

    assert told["updates"].keys() == {"4711"}
    written = told["updates"]["4711"]
    assert (written["disklimit"], written["bwlimit"]) == (1024, 5 * 1024)
    assert isinstance(written["bwusage"], int)
    assert [(action, service) for _, action, service, _ in told["logged"]] == [("UsageUpdate", 99)]


async def test_what_a_customer_sees_has_no_secret_and_no_error_of_the_server(whmcs: Whmcs) -> None:
    await whmcs.called("CreateAccount")
    await whmcs.settled()

    shown = await whmcs.called("ClientArea")
    unreachable = await whmcs.called("ClientArea", serverport="1")

    template = MODULE.with_name(f"{shown['answer']['templatefile']}.tpl").read_text()
    service = shown["answer"]["vars"]["service"]
    for path in re.findall(r"\$service((?:\.\w+)+)", template):
        found: Any = service
        for name in path.strip(".").split("."):
            found = found[name]
    assert whmcs.token not in json.dumps(shown["answer"])
    assert unreachable["answer"]["vars"] == {
        "service": None,
        "problem": "The state of the machine is not known just now.",
    }
    assert unreachable["logged"]
