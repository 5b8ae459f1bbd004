"""What an operator does all day, against a whole controller with a simulated node."""

from __future__ import annotations

import hashlib
import re
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from svc.cli import profiles
from svc.cli.failures import Exit
from svc.cli.profiles import Profile, ProfileFile
from svc_actors.store import Database
from svc_nodeagent.host import HostError, Report
from svc_nodeagent.protocol import FailureCode, NodeOperation, OperationResult
from svc_nodeagent.simulated import Behaviour, SimulatedHost
from tests.cli.conftest import EMAIL, IMAGE, PASSWORD, House, Terminal
from tests.support.authenticator import Authenticator

UUID_TEXT = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"


async def test_a_machine_is_made_used_and_deleted_by_names(house: House) -> None:
    await house.node()
    await house.image()
    created = await house.machine("web-1", "--password", "--wait")
    assert re.search(r"^status +running$", created.out, re.MULTILINE)
    assert re.search(r"^password +\S{12,}$", created.out, re.MULTILINE)
    assert "shown only now" in created.err
    listed = await house.ok("vm", "list")
    assert listed.lines()[0].split()[:3] == ["name", "status", "project"]
    assert "128 MiB" in listed.out
    assert max(map(len, listed.lines())) <= 100
    assert (await house.ok("vm", "list", "--output", "json")).json["items"][0]["memory_mib"] == 128
    stopped = await house.ok("vm", "shutdown", "web-1", "--wait", "-o", "json")
    assert stopped.json["status"] == "succeeded"
    assert (await house.ok("vm", "show", "web-1", "-o", "json")).json["status"] == "stopped"
    await house.ok("vm", "delete", "web-1", "--destroy-disks", "--yes", "--wait")
    assert (await house.ok("vm", "list", "-o", "json")).json["items"] == []


async def test_a_deletion_is_confirmed_by_the_name_or_not_done(house: House) -> None:
    await house.node()
    await house.image()
    await house.machine("web-1", "--password", "--wait")
    piped = await house.svc("vm", "delete", "web-1")
    assert piped.code == Exit.INVALID
    assert "--yes" in piped.err
    mistyped = await house.svc("vm", "delete", "web-1", typed="web-2\n")
    assert mistyped.code == Exit.INVALID
    assert (await house.ok("vm", "show", "web-1", "-o", "json")).json["status"] == "running"
    typed = await house.svc("vm", "delete", "web-1", "--wait", typed="web-1\n")
    assert typed.code == Exit.OK
    assert (await house.svc("vm", "show", "web-1")).code == Exit.NOT_FOUND


async def test_labels_are_written_as_pairs_and_found_again(house: House) -> None:
    await house.node()
    await house.image()
    for name, labels in (("shop", "env=production,tier=web"), ("queue", "env=production"), ("plain", "env=test")):
        await house.machine(name, "--password", "--labels", labels)

    found = await house.ok("vm", "list", "--label", "env=production", "-o", "json")
    malformed = await house.svc("vm", "update", "shop", "--labels", "env")
    await house.ok("vm", "update", "shop", "--labels", "none")
    shown = await house.ok("vm", "show", "shop", "-o", "json")

    assert {vm["name"] for vm in found.json["items"]} == {"shop", "queue"}
    assert (malformed.code, "NAME=VALUE" in malformed.err) == (Exit.INVALID, True)
    assert shown.json["labels"] == {}


async def test_waiting_ends_with_a_code_of_its_own_and_still_gives_the_password(house: House) -> None:
    await house.node(Behaviour(pull_seconds=(60.0, 60.0)))
    await house.image()
    sizes = ("--vcpus", "1", "--memory-mib", "128", "--disk-gib", "1")
    order = ("vm", "create", "slow", "--image", "tiny", "--project", "default", *sizes, "--password")
    ended = await house.svc(*order, "--wait-timeout", "0.2", "-o", "json")
    assert ended.code == Exit.WAIT_TIMED_OUT
    assert len(ended.json["password"]) >= 12
    task = ended.json["task"]["id"]
    assert f"svc task watch {task}" in ended.err
    watched = await house.svc("task", "watch", task, "--wait-timeout", "0.1")
    assert watched.code == Exit.WAIT_TIMED_OUT


async def test_a_failed_task_is_told_with_its_cause(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await house.node()

    async def fail(host: SimulatedHost, operation: NodeOperation, report: Report) -> OperationResult:
        await report(50, "half of it")
        raise HostError(FailureCode.HOST, f"A simulated failure of {operation.op}.", "Try again.")

    monkeypatch.setattr(SimulatedHost, "perform", fail)

    ended = await house.svc("node", "preflight", "sim-0001", "--wait", "-o", "json")
    assert ended.code == Exit.TASK_FAILED
    assert ended.json["status"] == "failed"
    assert "node.preflight of sim-0001 failed: " in ended.err
    assert ended.json["error_message"] in ended.err
    assert (await house.svc("task", "watch", ended.json["id"])).code == Exit.TASK_FAILED
    log = await house.ok("task", "log", ended.json["id"])
    assert len(log.lines()) > 1


async def test_a_name_that_means_two_things_does_nothing(house: House) -> None:
    for network, cidr in (("inside", "198.51.100.0/28"), ("outside", "203.0.113.0/28")):
        await house.ok("network", "create", network)
        await house.ok("network", "add-pool", network, "--name", "web", "--cidr", cidr)

    ended = await house.svc("pool", "show", "web")

    assert ended.code == Exit.CONFLICT
    assert len(re.findall(UUID_TEXT, ended.err)) == 2
    unknown = await house.svc("project", "show", "nobody")
    assert unknown.code == Exit.NOT_FOUND
    assert "svc project list" in unknown.err


async def test_refusals_have_their_own_codes_and_speak_of_flags(house: House, terminal: Terminal) -> None:
    await house.image()
    order = ("vm", "create", "web-1", "--project", "default", "--image", "tiny", "--password")
    small = await house.svc(*order, "--vcpus", "1", "--disk-gib", "1", "--memory-mib", "3")
    assert small.code == Exit.INVALID
    assert "--memory-mib: " in small.err
    nowhere = await house.svc(*order, "--vcpus", "1", "--disk-gib", "1", "--memory-mib", "128")
    assert nowhere.code == Exit.CAPACITY
    locked_out = await house.svc(*order[:-1], "--vcpus", "1", "--disk-gib", "1", "--memory-mib", "128")
    assert locked_out.code == Exit.INVALID
    assert "--ssh-keys, --ssh-key, --set-password, or --password" in locked_out.err
    sized = (*order, "--vcpus", "1", "--disk-gib", "1", "--memory-mib", "128", "--user-data", "-")
    lengthy = await house.svc(*sized, given="#!/bin/sh\n" + "#" * 32_768)
    assert lengthy.code == Exit.INVALID
    assert "--user-data: " in lengthy.err
    missing = await house.svc(*sized, given="")
    assert "--user-data: nothing on standard input" in missing.err
    assert (await house.svc("vm", "create", "--plan", "small")).code == Exit.INVALID
    assert (await house.svc("vm", "lst")).code == Exit.INVALID
    assert (await house.svc("task", "show", "0" * 32)).code == Exit.NOT_FOUND
    assert (await house.svc("vm", "list", SVC_TOKEN="svcvm_wrong")).code == Exit.UNAUTHENTICATED
    untrusted = await house.svc(
        "--profile", "house", "--url", house.url.replace("127.0.0.1", "localhost"), "vm", "list"
    )
    assert untrusted.code == Exit.UNAVAILABLE
    assert "certificate" in untrusted.err
    nobody = await terminal.svc("vm", "list")
    assert nobody.code == Exit.INVALID
    assert "svc login" in nobody.err
    authority = terminal.home / "authority.pem"
    authority.write_text(str(house.profile.trusted))
    anonymous = await terminal.svc("--url", house.url, "--ca", str(authority), "vm", "list")
    assert anonymous.code == Exit.UNAUTHENTICATED
    assert f"svc login {house.url}" in anonymous.err


async def test_an_expired_token_says_how_to_sign_in_again(house: House, database: Database) -> None:
    await database.execute("UPDATE api_tokens SET expires_at = $1", datetime.now(UTC) - timedelta(minutes=1))
    ended = await house.svc("vm", "list")
    assert ended.code == Exit.UNAUTHENTICATED
    assert f"svc login {house.url}" in ended.err
    assert ended.out == ""


async def test_a_file_is_sent_whole_and_its_digest_known(house: House) -> None:
    await house.image()
    shown = (await house.ok("image", "list", "-o", "json")).json
    assert [image["digest"] for image in shown if image["slug"] == "tiny"] == [hashlib.sha256(IMAGE).hexdigest()]
    table = await house.ok("image", "list")
    assert "5.9 KiB" in table.out
    missing = await house.svc("image", "upload", "tiny", "/nowhere/at/all")
    assert missing.code == Exit.INVALID


async def test_a_project_is_made_with_its_members_by_their_addresses(house: House) -> None:
    await house.ok("project", "create", "shop", "--user", EMAIL)

    members = await house.ok("project", "members", "shop", "-o", "json")
    assert [one["email"] for one in members.json["items"]] == [EMAIL]


async def test_adding_a_node_prints_one_command_and_nothing_else(house: House) -> None:
    added = await house.ok("node", "add", "rack-1")
    assert len(added.lines()) == 1
    assert house.fingerprint in added.out
    assert house.url in added.out
    assert "as root" in added.err
    pending = (await house.ok("node", "pending", "-o", "json")).json
    assert [one["name"] for one in pending] == ["rack-1"]
    await house.ok("node", "withdraw", "rack-1", "--yes")
    assert (await house.ok("node", "pending", "-o", "json")).json == []


async def test_sign_in_trusts_only_the_fingerprint_that_was_given(house: House, terminal: Terminal) -> None:
    order = ("login", house.url, "--email", EMAIL, "--password", "-")
    unknown = await terminal.svc(*order, given=f"{PASSWORD}\n")
    assert unknown.code == Exit.FORBIDDEN
    assert house.fingerprint in unknown.err
    other = await terminal.svc(*order, "--fingerprint", "0" * 64, given=f"{PASSWORD}\n")
    assert other.code == Exit.FORBIDDEN
    assert not profiles.profile_path(terminal.variables()).exists()
    wrong = await terminal.svc(*order, "--fingerprint", house.fingerprint, given="Not-This-One-1\n")
    assert wrong.code == Exit.UNAUTHENTICATED
    signed_in = await terminal.svc(*order, "--fingerprint", house.fingerprint, given=f"{PASSWORD}\n")
    assert signed_in.code == Exit.OK
    path = profiles.profile_path(terminal.variables())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert PASSWORD not in path.read_text()
    assert (await terminal.ok("me", "-o", "json")).json["email"] == EMAIL


async def test_sign_in_asks_for_a_code_where_one_is_needed(
    house: House, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    phone = Authenticator.with_clock(monkeypatch)
    enrolled = await house.svc("second-factor", "enrol", "--password", "-", "-o", "json", given=f"{PASSWORD}\n")
    phone.secret = enrolled.json["secret"]
    codes = (await house.ok("second-factor", "confirm", phone.code(), "-o", "json")).json["recovery_codes"]
    phone.pass_time()
    order = ("login", house.url, "--email", EMAIL, "--password", "-", "--fingerprint", house.fingerprint)

    without = await terminal.svc(*order, given=f"{PASSWORD}\n")
    wrong = await terminal.svc(*order, "--code", phone.wrong_code(), given=f"{PASSWORD}\n")
    typed = await terminal.svc(*order, given=f"{PASSWORD}\n{phone.code()}\n")
    recovered = await terminal.svc(*order, "--code", codes[0], given=f"{PASSWORD}\n")

    assert (without.code, "--code" in without.err) == (Exit.INVALID, True)
    assert wrong.code == Exit.UNAUTHENTICATED
    assert (typed.code, recovered.code) == (Exit.OK, Exit.OK)
    assert (await terminal.ok("second-factor", "show", "-o", "json")).json["recovery_codes"] == 9


async def test_an_administrator_sets_up_a_required_second_factor_at_the_terminal(
    house: House, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    phone = Authenticator.with_clock(monkeypatch)
    bob = ("user", "create", "bob@example.org", "--name", "Bob", "--role", "administrator", "--password", "-")
    assert (await house.svc(*bob, given=f"{PASSWORD}\n")).code == Exit.OK
    enrolled = await house.svc("second-factor", "enrol", "--password", "-", "-o", "json", given=f"{PASSWORD}\n")
    phone.secret = enrolled.json["secret"]
    await house.ok("second-factor", "confirm", phone.code())
    await house.ok("settings", "update", "--require-second-factor")
    order = ("login", house.url, "--email", "bob@example.org", "--password", "-", "--fingerprint", house.fingerprint)

    told = await terminal.svc(*order, given=f"{PASSWORD}\n")

    assert "otpauth://totp/" in told.err
    assert told.code == Exit.INVALID


async def test_every_page_is_fetched_when_asked(house: House) -> None:
    for number in range(4):
        await house.ok("project", "create", f"p{number}")
    page = await house.ok("project", "list", "--page-size", "2")
    assert len(page.lines()) == 3
    assert "page 1 of 3" in page.err
    everything = (await house.ok("project", "list", "--page-size", "2", "--all", "-o", "json")).json
    assert len(everything) == 5


async def test_a_flag_wins_over_the_environment_and_that_over_the_file(house: House) -> None:
    stored = profiles.load(house.variables())
    nowhere = Profile(url="https://127.0.0.1:1", token="svcvm_x", trusted=house.profile.trusted)
    profiles.save(house.variables(), ProfileFile("nowhere", {**stored.profiles, "nowhere": nowhere}))
    environment = {"SVC_PROFILE": "house"}
    assert (await house.svc("me", **environment)).code == Exit.OK
    assert (await house.svc("--profile", "house", "me", SVC_PROFILE="nowhere")).code == Exit.OK
    assert (await house.svc("me", "--profile", "house", SVC_PROFILE="nowhere")).code == Exit.OK
    assert (await house.svc("me", "--token", "svcvm_wrong", **environment)).code == Exit.UNAUTHENTICATED
    unknown = await house.svc("me", "--profile", "moon")
    assert unknown.code == Exit.INVALID
    assert "house, nowhere" in unknown.err


async def test_environment_alone_is_enough(house: House, terminal: Terminal, tmp_path: Path) -> None:
    authority = tmp_path / "authority.pem"
    authority.write_text(house.profile.trusted or "")
    variables = {"SVC_URL": house.url, "SVC_TOKEN": house.profile.token or "", "SVC_CA": str(authority)}
    assert (await terminal.svc("me", **variables)).code == Exit.OK
    assert not profiles.profile_path(terminal.variables()).exists()


async def test_signing_in_trusts_the_certificate_that_the_environment_names(
    house: House, terminal: Terminal, tmp_path: Path
) -> None:
    authority = tmp_path / "authority.pem"
    authority.write_text(house.profile.trusted or "")
    order = ("login", house.url, "--email", EMAIL, "--password", "-")

    assert (await terminal.svc(*order, given=f"{PASSWORD}\n", SVC_CA=str(authority))).code == Exit.OK
    assert (await terminal.ok("me", "-o", "json")).json["email"] == EMAIL
