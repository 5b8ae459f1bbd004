"""sendmail for sites, as programs call it: its options, its dialogue, and a core that is away."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from svc_webhost import mail
from svc_webhost.folders import HostFolders

MESSAGE = b"To: bob@example.net\nSubject: s\n\nhi\n"


@dataclass
class Core:
    """The other end: a thread that accepts what comes, unless a test lets it answer otherwise."""

    folders: HostFolders
    orders: list[dict[str, Any]] = field(default_factory=list)
    messages: list[bytes] = field(default_factory=list)
    greetings: list[dict[str, Any] | None] = field(default_factory=list)
    """Of the next connections; None ends one."""
    answers: list[dict[str, Any] | None] = field(default_factory=list)
    _listener: socket.socket | None = None

    def listen(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(mail.socket_of(self.folders)))
        self._listener.listen()
        threading.Thread(target=self._serve, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb") as stream:
                greeting = self.greetings.pop(0) if self.greetings else {"domain": "shop.example", "keep": False}
                if not _said(stream, greeting):
                    continue
                line = stream.readline()
                if not line:
                    continue
                order = json.loads(line)
                content = stream.read(order["bytes"])
                self.orders.append(order)
                self.messages.append(content)
                _said(stream, self.answers.pop(0) if self.answers else {"accepted": True})


def _said(stream: Any, answer: dict[str, Any] | None) -> bool:
    if answer is None:
        return False
    stream.write(json.dumps(answer).encode() + b"\n")
    stream.flush()
    return "domain" in answer


@pytest.fixture
def core() -> Iterator[Core]:
    # The path of a socket has 107 bytes at most, and that of a test's own folder may have more.
    with TemporaryDirectory(prefix="svc-mail-") as folder:
        folders = HostFolders(Path(folder))
        folders.shared_sockets.mkdir(parents=True)
        folders.client_settings.mkdir()
        mail.prepare(folders, relay=True)
        core = Core(folders)
        core.listen()
        yield core
        core.close()


Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def run(core: Core) -> Run:
    def run(*arguments: str, given: bytes = MESSAGE) -> subprocess.CompletedProcess[bytes]:
        program = str(mail.sendmail(core.folders))
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(core.folders.data)}
        return subprocess.run(
            [program, *arguments], input=given, capture_output=True, timeout=60, env=environment, check=False
        )

    return run


@pytest.mark.parametrize(
    "arguments",
    [
        ("-t", "-i"),
        ("-ti",),
        ("-t", "-oi", "-oem", "-odb"),
        ("-i", "-fme@shop.example", "bob@example.net"),
        ("-i", "-f", "me@shop.example", "--", "bob@example.net"),
        ("-i", "-F", "The Shop", "-B", "8BITMIME", "-N", "never", "bob@example.net"),
        ("-oi", "-r", "me@shop.example", "bob@example.net"),
        ("-bm", "-v", "bob@example.net"),
    ],
)
def test_the_options_that_programs_give(core: Core, run: Run, arguments: tuple[str, ...]) -> None:
    done = run(*arguments)

    [order] = core.orders
    assert (done.returncode, done.stderr) == (0, b"")
    assert order["recipients"] == ["bob@example.net"]
    assert order["sender"] == ("me@shop.example" if any("me@" in word for word in arguments) else None)


@pytest.mark.parametrize("option", ["-bp", "-q", "-q30m", "-bd", "-bi", "-bv", "-I", "-x"])
def test_what_it_does_not_do_it_says(core: Core, run: Run, option: str) -> None:
    done = run(option)

    assert done.returncode == 64
    assert done.stderr.startswith(b"sendmail: ")
    assert done.stderr.count(b"\n") == 1
    assert core.orders == []


def test_a_dot_ends_the_message_unless_it_is_to_be_ignored(core: Core, run: Run) -> None:
    given = b"To: bob@example.net\n\none\n.\ntwo\n"

    run("-t", given=given)
    run("-t", "-i", given=given)

    assert [content.partition(b"\r\n\r\n")[2] for content in core.messages] == [b"one\r\n", b"one\r\n.\r\ntwo\r\n"]


def test_a_message_without_a_recipient_is_refused(core: Core, run: Run) -> None:
    done = run("-t", given=b"Subject: s\n\nhi\n")

    assert done.returncode == 64
    assert b"no recipient" in done.stderr


def test_a_recipient_that_is_no_address_is_refused_with_all(core: Core, run: Run) -> None:
    done = run("-i", "bob@example.net", "root")

    assert done.returncode == 69
    assert b"'root' is not an address; nothing was sent" in done.stderr
    assert core.orders == []


def test_a_dialogue_in_smtp(core: Core, run: Run) -> None:
    """As Symfony's and Swift's transports have it: several mails over one program."""
    done = run(
        "-bs",
        given=b"EHLO localhost\r\nMAIL FROM:<me@shop.example> SIZE=100\r\nRCPT TO:<bob@example.net>\r\n"
        b"RCPT TO:<eve@example.net>\r\nDATA\r\nSubject: s\r\n\r\n..dot\r\n.\r\nRSET\r\nMAIL FROM:<>\r\n"
        b"RCPT TO:<no address>\r\nRCPT TO:<bob@example.net>\r\nDATA\r\nSubject: 2\r\n\r\nx\r\n.\r\nQUIT\r\n",
    )

    codes = [line[:4] for line in done.stdout.decode().splitlines()]
    assert codes == [
        *("220 ", "250-", "250-", "250-", "250 ", "250 ", "250 ", "250 ", "354 ", "250 "),
        *("250 ", "250 ", "553 ", "250 ", "354 ", "250 ", "221 "),
    ]
    assert [(order["sender"], order["recipients"]) for order in core.orders] == [
        ("me@shop.example", ["bob@example.net", "eve@example.net"]),
        (None, ["bob@example.net"]),
    ]
    assert core.messages[0].endswith(b"\r\n\r\n.dot\r\n")


def test_a_dialogue_out_of_order_is_answered(core: Core, run: Run) -> None:
    done = run("-bs", given=b"RCPT TO:<a@b.example>\r\nDATA\r\nMAIL\r\nAUTH PLAIN x\r\nVRFY a\r\n\r\nQUIT\r\n")

    codes = [line[:3] for line in done.stdout.decode().splitlines()]
    assert codes == ["220", "503", "503", "501", "502", "502", "502", "221"]


def test_a_refusal_is_said_in_the_dialogue(core: Core, run: Run) -> None:
    core.greetings = [{"refused": "held\r\n250 fine", "exit": 77}]

    done = run("-bs", given=b"MAIL FROM:<>\r\nRCPT TO:<a@b.example>\r\nDATA\r\n\r\n.\r\nQUIT\r\n")

    assert "554 held" in done.stdout.decode()
    assert "\n250 fine" not in done.stdout.decode()


@pytest.mark.parametrize("status", [69, 75, 77])
def test_a_refusal_is_said_in_one_line(core: Core, run: Run, status: int) -> None:
    core.answers = [{"refused": "held:\nmore", "exit": status}]

    done = run("-t")

    assert (done.returncode, done.stderr) == (status, b"sendmail: held: more\n")


def test_the_core_gets_the_same_id_after_it_was_away_in_the_middle(core: Core, run: Run) -> None:
    core.greetings = [{"busy": True}, None]
    core.answers = [None]

    done = run("-t")

    assert done.returncode == 0
    assert len({order["id"] for order in core.orders}) == 1
    assert len(core.orders) == 2


def test_a_core_that_is_not_there_ends_it_within_three_seconds(core: Core, run: Run) -> None:
    core.close()
    began = time.monotonic()

    done = run("-t")

    assert done.returncode == 75
    assert b"does not take mail at the moment" in done.stderr
    assert 2.9 < time.monotonic() - began < 9


@pytest.mark.parametrize(
    ("mode", "postdrop", "used"),
    [(0o755, False, True), (0o2755, False, True), (0o4755, False, False), (0o755, True, False), (None, False, False)],
    ids=["speaks SMTP", "set-gid", "set-uid", "Postfix", "none"],
)
def test_without_a_relay_a_sendmail_of_the_server_that_works_for_sites_is_not_covered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int | None, *, postdrop: bool, used: bool
) -> None:
    folders, own, link = HostFolders(tmp_path), tmp_path / "msmtp", tmp_path / "sendmail"
    folders.shared_sockets.mkdir(parents=True)
    folders.client_settings.mkdir()
    link.symlink_to(own)
    if mode is not None:
        own.touch()
        own.chmod(mode)
    if postdrop:
        (tmp_path / "postdrop").touch()
    monkeypatch.setattr(mail, "SENDMAIL_OF_SERVER", link)
    monkeypatch.setattr(mail, "POSTDROP", tmp_path / "postdrop")

    def covered() -> list[bool]:
        return [path.exists() for path in (mail.sendmail(folders).parent, folders.client_settings / "mail.ini")]

    mail.prepare(folders, relay=True)
    with_relay = covered()
    for _ in range(2):
        mail.prepare(folders, relay=False)

    assert with_relay == [True, True]
    assert covered() == [not used, not used]


def test_settings_of_php_name_it(core: Core) -> None:
    lines = (core.folders.client_settings / "mail.ini").read_text().splitlines()

    assert lines == [f'sendmail_path = "{mail.sendmail(core.folders)} -t -i"', "mail.add_x_header = On"]


def test_it_imports_nothing_but_the_standard_library_and_its_own(core: Core) -> None:
    """A site sees nothing else of the panel, and /usr/bin/python3 -S has nothing else."""
    folder = mail.sendmail(core.folders).parents[1] / "svc_webhost" / "mail"

    assert sorted(path.name for path in folder.glob("*.py")) == ["dkim.py", "message.py", "sendmail.py"]
