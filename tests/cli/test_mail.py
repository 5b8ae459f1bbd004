"""Mail of a whole controller, as its administrator sees it at a terminal."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from svc.cli.check import Verdict, findings
from svc.cli.failures import Exit
from svc.controller.config import ControllerConfig
from svc.controller.services import ControllerLoop
from tests.cli.conftest import EMAIL, PASSWORD, House, Terminal, open_house
from tests.support.smtp import WAIT, MailServer, mail_server, password_file

LOOPS: Final[tuple[ControllerLoop, ...]] = ("events", "mail delivery", "alert mail", "password asks")


@pytest.fixture
async def relay() -> AsyncIterator[MailServer]:
    async with mail_server() as server:
        yield server


@pytest.fixture
async def mailing(database_url: str, tmp_path: Path, relay: MailServer) -> AsyncIterator[House]:
    async with open_house(database_url, tmp_path, relay.settings(), loops=LOOPS) as opened:
        yield opened


async def the_mail(house: House, state: str) -> dict[str, Any]:
    """The only one, once it is in this state."""
    with trio.fail_after(WAIT):
        while True:
            listed = json.loads((await house.ok("mail", "list", "--state", state, "--output", "json")).out)
            if listed["items"]:
                [mail] = listed["items"]
                return dict(mail)
            await trio.sleep(0.05)


async def test_a_test_mail_arrives_and_is_listed_without_its_text(mailing: House, relay: MailServer) -> None:
    await mailing.ok("mail", "test")

    arrived = await relay.next()
    listed = await the_mail(mailing, "sent")

    assert arrived.recipients == [EMAIL]
    assert mailing.url in arrived.text
    assert (listed["kind"], listed["recipient"], listed["message_id"]) == ("test", EMAIL, arrived.message["Message-ID"])
    assert "content" not in listed
    shown = (await mailing.ok("mail", "list")).out
    assert EMAIL in shown
    assert "sent" in shown


async def test_a_terminal_that_signs_in_again_is_no_new_browser(mailing: House, relay: MailServer) -> None:
    sign_in = ("login", mailing.url, "--email", EMAIL, "--password", "-", "--fingerprint", mailing.fingerprint)
    await mailing.svc(*sign_in, given=f"{PASSWORD}\n")
    told = await relay.next()
    await mailing.svc(*sign_in, given=f"{PASSWORD}\n")
    await mailing.ok("mail", "test")

    assert "a browser" in told.text
    assert "a test of mail" in (await relay.next()).message["Subject"]


async def test_a_mail_that_failed_is_tried_again(mailing: House, relay: MailServer) -> None:
    relay.to_recipients = ["550 5.1.1 no such user"]
    await mailing.ok("mail", "test", "--to", "eve@example.net")
    failed = await the_mail(mailing, "failed")

    await mailing.ok("mail", "retry", failed["id"])

    assert (await relay.next()).recipients == ["eve@example.net"]
    assert failed["error"] == "550 5.1.1 no such user"


async def test_a_person_is_invited_and_chooses_passwords_from_a_terminal_without_an_account(
    mailing: House, relay: MailServer, tmp_path: Path
) -> None:
    stranger = Terminal(tmp_path / "stranger")
    stranger.home.mkdir()
    authority = tmp_path / "authority.pem"
    authority.write_text(mailing.profile.trusted or "")
    here = {"SVC_URL": mailing.url, "SVC_CA": str(authority)}

    async def set_by_mail(password: str) -> None:
        [token] = re.findall(r"token=([\w-]+)", (await relay.next()).text)
        ended = await stranger.svc("password", "set", token, "--password", "-", given=password, **here)
        assert ended.code == Exit.OK, ended.err
        arguments = ("login", mailing.url, "--ca", str(authority), "--email", "ida@example.net", "--password", "-")
        ended = await stranger.svc(*arguments, given=password)
        assert ended.code == Exit.OK, ended.err

    await mailing.ok("user", "create", "ida@example.net", "--name", "Ida", "--invite")
    await set_by_mail("First-Password-1")
    ended = await stranger.svc("password", "forgot", "ida@example.net", **here)
    assert ended.code == Exit.OK, ended.err
    await set_by_mail("Second-Password-2")

    again = await mailing.svc("user", "invite", "ida@example.net")
    assert again.code == Exit.CONFLICT


async def test_without_settings_nothing_is_sent_and_it_is_said_why(house: House) -> None:
    ended = await house.svc("mail", "test")

    assert ended.code == Exit.NOT_READY
    assert "[mail]" in ended.err
    assert json.loads((await house.ok("mail", "list", "--output", "json")).out)["total"] == 0


async def test_check_says_whether_the_relay_can_be_used(tmp_path: Path, relay: MailServer) -> None:

    async def said(**more: str) -> tuple[Verdict, str]:
        config = ControllerConfig(
            data_dir=tmp_path, public_host="localhost", operations_port=1, mail=relay.settings(**more)
        )
        [found] = [each async for each in findings(config, {}) if each.about == "mail"]
        return found.verdict, found.words

    good = await said()
    refused = await said(username="svc", password_file=password_file(tmp_path, "hunter2"))
    relay.stop()
    away = await said()

    assert good == (Verdict.OK, f"localhost:{relay.port}, none, as svc@example.org")
    assert refused[0] is Verdict.WARNING
    assert "AUTH" in refused[1]
    assert "hunter2" not in refused[1]
    assert away[0] is Verdict.WARNING


async def test_a_support_bundle_names_the_relay_and_no_password(tmp_path: Path, database_url: str) -> None:
    terminal = Terminal(tmp_path)
    secret = password_file(tmp_path, "hunter2-of-the-relay")
    given = {"HOST": "smtp.invalid", "SENDER": "svc@example.org", "USERNAME": "svc", "PASSWORD_FILE": secret}
    file = tmp_path / "bundle.tar"

    ended = await terminal.svc(
        *("controller", "support-bundle", str(file), "--data", str(tmp_path / "data")),
        SVC_DATABASE_URL=database_url,
        **{f"SVC_MAIL_{name}": value for name, value in given.items()},
    )

    assert ended.code == Exit.OK, ended.err
    content = gzip.decompress(file.read_bytes())
    assert b"smtp.invalid" in content
    assert b"hunter2" not in content
