"""Mail of sites on a real server: PHP, WordPress, scheduled tasks and a shell hand it in, where a sendmail is installed
that never ends; a hacked script is stopped; nothing is lost when the relay is away and the core is killed. The tests
say what was seen of it."""

from __future__ import annotations

import os
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from tests.support.figures import report_figure
from tests.support.panel_programs import PanelPrograms, open_panel_programs
from tests.support.smtp import MailServer, mail_server

pytestmark = [pytest.mark.system, pytest.mark.isolated]

SHOP, BLOG, QUIET = "shop.example.com", "blog.example.com", "quiet.example.com"
LIMIT, FLOOD = 200, 320
INSTALL = """
mount -t tmpfs none "$1" && mkdir "$1/up" "$1/w" &&
printf '#!/bin/sh\\nexec sleep 1000\\n' > "$1/up/sendmail" && chmod 755 "$1/up/sendmail" &&
mount -t overlay -o "lowerdir=/usr/sbin,upperdir=$1/up,workdir=$1/w" none /usr/sbin && shift && exec "$@"
"""
"""A server with a mail server whose sendmail waits for rights that it never gets."""
SENDS = """<?php
set_time_limit(0);
$sent = 0;
for ($n = 0; $n < (int) $_GET['n']; $n++) {
    $id = "Message-ID: <{$_GET['as']}-$n@example.com>";
    $done = mail('someone@example.net', 'Subject', "A text.\\n", "$id\\r\\nX-Mailer: PHP");
    if (!$done) continue;
    $sent++;
    file_put_contents($_SERVER['HOME'] . '/private/accepted', "{$_GET['as']}-$n\\n", FILE_APPEND);
}
echo "sent $sent";
"""
WP_SENDS = """<?php
require __DIR__ . '/wp-load.php';
echo wp_mail('customer@example.net', 'Grüße', 'An order.') ? 'sent' : 'not sent';
"""
TASK = "<?php exit(mail('task@example.net', 'By a task', 'x') ? 0 : 1);\n"
SHELL = """
import subprocess, sys
message = b"To: shell@example.net\\nSubject: By a shell\\n\\nx\\n"
sys.exit(subprocess.run(["/bin/sh", "-c", "exec /usr/sbin/sendmail -t"], input=message, timeout=60).returncode)
"""


@dataclass
class Life:
    """What was seen, in the order in which it was done."""

    by_php: list[str] = field(default_factory=list)
    mails: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    """Of a recipient: the envelope sender, From and Subject."""
    tasks: list[str] = field(default_factory=list)
    flood: list[str] = field(default_factory=list)
    flooded: int = 0
    notices: int = 0
    """Mails to the owner about it."""
    alerts: list[str] = field(default_factory=list)
    pages: dict[str, list[float]] = field(default_factory=dict)
    accepted: set[str] = field(default_factory=set)
    arrived: Counter[str] = field(default_factory=Counter)
    cut: int = 0


@pytest.fixture(scope="module")
def life() -> Life:
    return trio.run(live)


async def live() -> Life:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="svc-sendmail-") as layers:
        tracer = ("sh", "-c", INSTALL, "sh", layers)
        async with mail_server() as relay, open_panel_programs(tracer=tracer) as panel:
            panel.core.environment |= {
                "SVC_MAIL_HOST": "127.0.0.1",
                "SVC_MAIL_PORT": str(relay.port),
                "SVC_MAIL_SECURITY": "none",
                "SVC_MAIL_SENDER": "svc@example.org",
            }
            await panel.start()
            await panel.customer()
            scene = Scene(panel, panel.client(), relay)
            await scene.create()
            await scene.send_by_all_means()
            await scene.lose_nothing()
            await scene.flood()
    report_figure(f"the life of sites' mail: {time.monotonic() - began:.0f} s")
    return scene.life


@dataclass
class Scene:
    panel: PanelPrograms
    root: httpx.AsyncClient
    relay: MailServer
    sites: dict[str, dict[str, Any]] = field(default_factory=dict)
    life: Life = field(default_factory=Life)

    async def create(self) -> None:
        for domain, type in ((SHOP, "php"), (QUIET, "php"), (BLOG, "wordpress")):
            values = {"title": "Blog"} if type == "wordpress" else {}
            self.sites[domain] = await self.panel.site(domain, type=type, **values)
        for job in (await self.root.get("/jobs")).json()["items"]:
            await self.until_ended(f"/jobs/{job['id']}")
        for domain in (SHOP, QUIET):
            self.write(domain, "public/send.php", SENDS)
            self.write(domain, "public/page.php", "<?php echo 'a page';\n")
        self.write(BLOG, "public/order.php", WP_SENDS)

    async def send_by_all_means(self) -> None:
        async with trio.open_nursery() as nursery:
            # As many as the site has workers: with the server's own sendmail the site would answer no more.
            for number in range(8):
                nursery.start_soon(self.send, SHOP, 1, f"form{number}", self.life.by_php)
        self.life.by_php.append((await self.panel.visit(BLOG, "/order.php")).text)
        for kind, file, text in (("php", "task.php", TASK), ("python", "shell.py", SHELL)):
            self.write(SHOP, f"private/{file}", text)
            values = {"name": kind, "kind": kind, "path": f"private/{file}", "cron": "0 0 1 1 *"}
            made = await self.root.post(f"/sites/{self.sites[SHOP]['id']}/schedules", json=values)
            assert made.status_code < 300, made.text
            run = await self.root.post(f"/schedules/{made.json()['id']}/run", json={})
            assert run.status_code < 300, run.text
            ended = await self.until_ended(f"/schedules/{made.json()['id']}/runs/{run.json()['id']}")
            self.life.tasks.append(ended["status"])
        for _ in range(8 + 1 + 2):
            mail = await self.relay.next()
            seen = (mail.sender, str(mail.message["From"]), str(mail.message["Subject"]))
            self.life.mails[mail.recipients[0]] = seen

    async def lose_nothing(self) -> None:
        """The relay is away; the core is killed while mails are handed in, and again while they are delivered."""
        self.relay.stop()
        self.relay.texts.clear()
        async with trio.open_nursery() as nursery:
            for name in ("a", "b"):
                nursery.start_soon(self.send, QUIET, 40, name, [])
            await self.until(lambda: len(self.accepted()) > 10)
            await self.kill()
        self.relay.start()
        await self.until(lambda: len(self.relay.texts) > 10)
        self.life.cut = len(self.relay.texts)
        await self.kill()
        self.life.accepted = self.accepted()
        await self.until(lambda: self.life.accepted <= set(self.arrived()))
        self.life.arrived = self.arrived()

    async def flood(self) -> None:
        """Many mails at once by a script that nobody of the shop knows."""
        self.write(SHOP, "public/images/x.php", SENDS)
        for when in ("before", "while"):
            for domain in (SHOP, QUIET):
                self.life.pages[f"{domain} {when}"] = []
        await self.measure("before", 20)
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(self.send, SHOP, FLOOD // 4, f"flood{number}", self.life.flood, "/images/x.php")
                # Each has a worker of its own before the next comes: of several that come in the same moment php-fpm
                # leaves some to the first worker, however long that takes.
                await self.until(partial(self.began, number))
            while len(self.life.flood) < 4:
                await self.measure("while", 1)
        self.life.alerts = [alert["message"] for alert in (await self.root.get("/alerts")).json()["items"]]
        sent = sum(int(answer.removeprefix("sent ")) for answer in self.life.flood)
        await self.until(lambda: self.flooded() >= sent and self.notices() > 0)
        self.life.flooded, self.life.notices = self.flooded(), self.notices()
        for domain in (SHOP, QUIET):
            middle = {when: statistics.median(self.life.pages[f"{domain} {when}"]) for when in ("before", "while")}
            worst = max(self.life.pages[f"{domain} while"])
            report_figure(
                f"a page of {domain} while {FLOOD} mails are handed in: {middle['while'] / middle['before']:.1f} times "
                f"as long ({1000 * middle['before']:.0f} and {1000 * middle['while']:.0f} ms, {worst:.2f} s at worst)"
            )

    async def measure(self, when: str, number: int) -> None:
        for _ in range(number):
            for domain in (SHOP, QUIET):
                began = time.monotonic()
                answer = await self.panel.visit(domain, "/page.php")
                assert (answer.status_code, answer.text) == (200, "a page")
                self.life.pages[f"{domain} {when}"].append(time.monotonic() - began)

    async def send(self, domain: str, number: int, name: str, answers: list[str], path: str = "/send.php") -> None:
        plain = f"http://127.0.0.1:{self.panel.http_port}"
        async with httpx.AsyncClient(base_url=plain, verify=False, timeout=300) as http:
            answer = await http.get(path, params={"n": number, "as": name}, headers={"Host": domain})
        answers.append(answer.text)

    async def kill(self) -> None:
        await self.panel.core.kill()
        await self.root.aclose()
        await self.panel.start()
        self.root = self.panel.client()

    def began(self, number: int) -> bool:
        return f"flood{number}-0" in self.accepted(SHOP)

    def flooded(self) -> int:
        return sum(number for id, number in self.arrived().items() if id.startswith("flood"))

    def notices(self) -> int:
        """The panel's own mails."""
        return sum(id.endswith("@example.org>") for id in self.relay.texts)

    def accepted(self, domain: str = QUIET) -> set[str]:
        """The mails of which the site was told that they are accepted."""
        file = self.home(domain) / "private" / "accepted"
        return set(file.read_text().split()) if file.exists() else set()

    def arrived(self) -> Counter[str]:
        return Counter(found[1] for id in self.relay.texts if (found := re.fullmatch(r"<(.*)@example.com>", id)))

    def home(self, domain: str) -> Path:
        return Path(self.panel.data, "sites", self.sites[domain]["account"])

    def write(self, domain: str, path: str, text: str) -> None:
        file, owner = self.home(domain) / path, self.home(domain).stat().st_uid
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        for each in (file.parent, file):
            os.chown(each, owner, owner)

    async def until_ended(self, path: str) -> dict[str, Any]:
        with trio.fail_after(240):
            while (found := (await self.root.get(path)).json()).get("ended_at") is None:
                await trio.sleep(0.05)  # It goes on outside of this process.
        assert isinstance(found, dict)
        return found

    @staticmethod
    async def until(holds: Callable[[], bool]) -> None:
        with trio.fail_after(120):
            while not holds():
                await trio.sleep(0.02)  # It goes on outside of this process.


def test_eight_forms_at_once_are_sent_though_the_servers_own_sendmail_never_ends(life: Life) -> None:
    assert life.by_php[:8] == ["sent 1"] * 8
    assert life.mails["someone@example.net"] == (f"noreply@{SHOP}", f"noreply@{SHOP}", "Subject")


def test_wordpress_sends_with_its_own_address(life: Life) -> None:
    assert life.by_php[8] == "sent"
    assert life.mails["customer@example.net"] == (f"noreply@{BLOG}", f"WordPress <wordpress@{BLOG}>", "Grüße")


def test_scheduled_tasks_and_shells_send(life: Life) -> None:
    assert life.tasks == ["succeeded", "succeeded"]
    assert life.mails["task@example.net"][2] == "By a task"
    assert life.mails["shell@example.net"][2] == "By a shell"


def test_no_accepted_mail_is_lost_though_the_core_is_killed_twice(life: Life) -> None:
    missing = life.accepted - set(life.arrived)
    twice = [id for id, number in life.arrived.items() if number > 1]
    report_figure(f"sites' mail through two kills: {len(life.accepted)} accepted, {len(twice)} sent twice")

    assert len(life.accepted) > 40
    assert 10 < life.cut < len(life.accepted)
    assert missing == set()
    assert len(twice) <= 1, "the one that the relay had taken and the core had not recorded"


def test_a_hacked_script_stops_at_the_limit_and_is_named(life: Life) -> None:
    sent = sum(int(answer.removeprefix("sent ")) for answer in life.flood)
    [alert] = [message for message in life.alerts if message.startswith(f"The mail of {SHOP} is held")]

    # The eight forms and both tasks count as well.
    assert sent == life.flooded == LIMIT - 10
    assert life.notices == 1
    assert f"more than {LIMIT} mails in an hour" in alert
    assert f"public/images/x.php: {sent + 1}" in alert


def test_pages_answer_while_a_hacked_script_sends(life: Life) -> None:
    for domain in (SHOP, QUIET):
        assert len(life.pages[f"{domain} while"]) > 3
        assert max(life.pages[f"{domain} while"]) < 10
