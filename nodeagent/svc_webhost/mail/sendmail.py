"""sendmail for the programs of sites: hands a message to the panel's core, which sends it by the server's relay.

    sendmail [-t] [-i] [-f SENDER] [-F NAME] [RECIPIENT...]     the message is on standard input
    sendmail -bs                                                  a dialogue in SMTP on standard input and output

It runs with the rights of the site and does all parsing. The core gets a line of JSON (sender, recipients, script) and
the bytes of the finished message over a socket, and learns from the kernel which account has connected.

The core speaks first, so that a refusal needs no message, and the program learns the site's domain:

    core     {"domain": "shop.example", "keep": false}      or {"refused": "...", "exit": 77}
    program  {"id": "<32 hex digits>", "bytes": 1234, "sender": null, "recipients": [...], "script": "...",
              "from_domain": "shop.example", "signing": {...}}
    program  1234 bytes
    core     {"accepted": true}                             or {"refused": "...", "exit": 75}

A core that is away is tried again for `AWAY_SECONDS`, also when it ends in the middle: the message has the same id each
time, so that it is accepted once. If nobody listens it is `REFUSED_SECONDS`: a worker of PHP waits for each mail, and
after a return to an earlier release nobody will. Every wait has a deadline.

Exit status (sysexits.h): 0 accepted; 64 wrong usage; 69 it can never be sent; 75 try again later; 77 the site may not
send now. All but 0 say on standard error what happened.
"""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import sys
import time
from contextlib import suppress

from svc_webhost.mail.dkim import signing_data
from svc_webhost.mail.message import MOST_BYTES, Draft, MessageError, address, unique

# A worker of PHP waits for this program, once for each mail: `typing` and `dataclasses` would be a third of its start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final, NoReturn

USAGE, UNAVAILABLE, TEMPORARY, NOT_PERMITTED = 64, 69, 75, 77
AWAY_SECONDS: Final = 10.0
REFUSED_SECONDS: Final = 3.0
_ANSWER_SECONDS: Final = 40.0
"""Longer than the core takes for a message."""
_INPUT_SECONDS: Final = 120.0
"""Between two pieces of standard input."""
_DIALOGUE_SECONDS: Final = 300.0
"""Between two commands in SMTP (RFC 5321, 4.5.3.2.7): the transports of Symfony keep the program between mails."""
_LONGEST_LINE: Final = 65536
_LONGEST_SCRIPT: Final = 200
_MOST_KEPT: Final = 500
"""The same limit as in `keep_mail.php`."""
_SOCKET: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), *[os.pardir] * 2, "mail.sock")
_INTERPRETERS: Final = ("sh", "bash", "dash", "python", "perl", "ruby", "node", "php")
_TAKEN_OPTIONS: Final = frozenset({"-i", "-oi", "-t", "-bs", "-bm", "-U", "-n", "-v", "-m", "-G"})
_WITH_VALUE: Final = ("-f", "-r", "-F", "-o", "-B", "-N", "-R", "-V", "-h", "-L", "-O", "-X", "-p", "-C", "-A", "-d")
_REFUSED: Final = {
    "-bp": "the queue of mail is shown in the panel",
    "-q": "the panel sends the queue by itself",
    "-bi": "this server has no aliases",
    "-bv": "addresses are not looked up here",
    "-bt": "addresses are not looked up here",
    "-bd": "this is no mail server",
    "-bD": "this is no mail server",
    "-I": "this server has no aliases",
}


class HandInError(Exception):
    """The message for standard error, and the exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Options:
    def __init__(self) -> None:
        self.dialogue = False
        self.headers = False
        """Recipients are taken from the message's headers (-t)."""
        self.dot_ends = True
        """A line with a dot alone ends the message: without -i."""
        self.sender: str | None = None
        self.full_name: str | None = None
        self.recipients: list[str] = []


class Envelope:
    def __init__(self, sender: str | None, recipients: list[str], full_name: str | None) -> None:
        self.sender = sender
        self.recipients = recipients
        self.full_name = full_name


def main(arguments: list[str]) -> int:
    try:
        options = read_options(arguments)
        if options.dialogue:
            return Dialogue(options).run()
        raw = _whole_input()
        draft = Draft.parse(_until_dot(raw) if options.dot_ends else raw)
        named = [address(text) for text in options.recipients]
        recipients = unique([*named, *(draft.recipients() if options.headers else [])])
        if not recipients:
            raise HandInError("the message has no recipient", USAGE)
        hand_in(draft, Envelope(options.sender, recipients, options.full_name))
    except HandInError as failure:
        return _say(str(failure), failure.status)
    except MessageError as error:
        return _say(f"{error}; nothing was sent", UNAVAILABLE)
    except OSError as error:
        return _say(f"the message cannot be read: {error}", TEMPORARY)
    return 0


def read_options(arguments: list[str]) -> Options:
    """Raises `HandInError` for what this program does not do."""
    options, waiting = Options(), list(arguments)
    while waiting:
        argument = waiting.pop(0)
        if argument == "--":
            options.recipients += waiting
            break
        if not argument.startswith("-") or argument == "-":
            options.recipients.append(argument)
            continue
        for refused, why in _REFUSED.items():
            if argument.startswith(refused):
                raise HandInError(f"{refused} is not possible: {why}", USAGE)
        if argument in _TAKEN_OPTIONS or argument in ("-ti", "-it"):
            options.dialogue = options.dialogue or argument == "-bs"
            options.headers = options.headers or "t" in argument
            options.dot_ends = options.dot_ends and "i" not in argument
        elif argument[:2] in _WITH_VALUE:
            # `-fADDRESS` and `-f ADDRESS`; of -o the value is always in the same word.
            value = argument[2:] or ("" if argument == "-o" or not waiting else waiting.pop(0))
            if argument[:2] in ("-f", "-r"):
                options.sender = _sender(value)
            elif argument[:2] == "-F":
                options.full_name = value
        else:
            raise HandInError(f"{argument[:40]!r} is not known", USAGE)
    return options


def hand_in(draft: Draft, envelope: Envelope) -> None:
    """Have the core accept the message, or keep it in the site if that is a staging copy. Raises `HandInError`."""
    identity = os.urandom(16).hex()
    until = time.monotonic() + AWAY_SECONDS
    refused = 0.0
    while True:
        try:
            return _hand_in_once(draft, envelope, identity)
        except OSError as error:
            now = time.monotonic()
            nobody = isinstance(error, (ConnectionRefusedError, FileNotFoundError))
            refused = (refused or now) if nobody else 0.0
            if now >= until or (nobody and now >= refused + REFUSED_SECONDS):
                raise HandInError(
                    f"the panel does not take mail at the moment ({error}); try again", TEMPORARY
                ) from None
        time.sleep(0.2)


def _hand_in_once(draft: Draft, envelope: Envelope, identity: str) -> None:
    """Raises `OSError` if the core is away or has no room for another connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        connection.connect(_SOCKET)
        lines = connection.makefile("rb")
        greeting = _answer(lines.readline(_LONGEST_LINE))
        finished = draft.finished(str(greeting["domain"]), envelope.sender, envelope.full_name)
        if len(finished.content) > MOST_BYTES:
            raise MessageError(f"the message has more than {MOST_BYTES >> 20} MiB")
        if greeting.get("keep"):
            return _keep(finished.content)
        signed = signing_data(finished.content)
        order = {
            "id": identity,
            "bytes": len(finished.content),
            "sender": envelope.sender,
            "recipients": envelope.recipients,
            "script": script_of(draft.php_script),
            "from_domain": finished.from_domain,
            "signing": None if signed is None else signed.as_json(),
        }
        # A core that refuses in the middle reads no further; what it has answered says why.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(json.dumps(order).encode() + b"\n")
            connection.sendall(finished.content)
        _answer(lines.readline(_LONGEST_LINE))
        return None


def _answer(line: bytes) -> dict[str, Any]:
    if not line.endswith(b"\n"):
        raise ConnectionResetError(errno.ECONNRESET, "the connection ended")
    answer: dict[str, Any] = json.loads(line)
    if answer.get("busy"):
        raise BlockingIOError(errno.EAGAIN, "too many mails at once")
    if "refused" in answer:
        raise HandInError(str(answer["refused"]), int(answer["exit"]))
    return answer


def script_of(php: str | None) -> str:
    """The program that sends, for people who look for it: a path below the home of the site if it is known, else its
    folder and its name. It is what the site says, so it proves nothing."""
    home = os.environ.get("HOME", "/")
    try:
        folder = os.getcwd()
    except OSError:
        folder = "?"
    name = php if php is not None else _program_of_parent()
    whole = os.path.join(folder, name) if name else folder
    known = bool(name) and os.path.exists(whole)
    shown = os.path.relpath(whole if known else folder, home) if (whole + "/").startswith(home + "/") else whole
    text = shown if known or not name else f"{shown} ({name})"
    plain = "".join(letter if letter.isprintable() else "?" for letter in text.encode("utf-8", "replace").decode())
    return plain if len(plain) <= _LONGEST_SCRIPT else "..." + plain[3 - _LONGEST_SCRIPT :]


def _program_of_parent() -> str:
    try:
        with open(f"/proc/{os.getppid()}/cmdline", "rb") as file:
            words = file.read(4096).decode(errors="replace").split("\0")
    except OSError:
        return ""
    program = os.path.basename(words[0])
    if program.rstrip("0123456789.") in _INTERPRETERS and len(words) > 1 and words[1][:1] not in ("", "-"):
        program = os.path.basename(words[1])
    return program


def _keep(content: bytes) -> None:
    """Keep the message in private/mail, as PHP of a staging copy does."""
    folder = os.path.join(os.environ.get("HOME", "/"), "private", "mail")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        path = os.path.join(folder, f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.urandom(6).hex()}")
        with open(f"{path}.part", "xb") as file:
            file.write(content)
        os.rename(f"{path}.part", f"{path}.eml")
        kept = sorted(name for name in os.listdir(folder) if name.endswith(".eml"))
        for name in kept[:-_MOST_KEPT]:
            os.unlink(os.path.join(folder, name))
    except OSError as error:
        raise HandInError(f"the mail of this staging copy cannot be kept in private/mail: {error}", TEMPORARY) from None


class Input:
    """Standard input by lines, with a deadline for each piece."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._held = b""

    def line(self, longest: int) -> bytes:
        """The next line with its end; without one at the end of the input, or if it is too long."""
        while b"\n" not in self._held and len(self._held) < longest:
            piece = _piece(self._seconds)
            if not piece:
                break
            self._held += piece
        end = self._held.find(b"\n") + 1 or len(self._held)
        result, self._held = self._held[:end], self._held[end:]
        return result


class Dialogue:
    """The few commands of SMTP that programs use when they talk to sendmail -bs."""

    def __init__(self, options: Options) -> None:
        self._full_name = options.full_name
        self._input = Input(_DIALOGUE_SECONDS)
        self._sender: str | None = None
        self._mail = False
        self._recipients: list[str] = []

    def run(self) -> int:
        self._reply("220 sendmail of the panel")
        while True:
            try:
                line = self._input.line(_LONGEST_LINE)
            except TimeoutError:
                self._reply("421 no command came in time")
                return TEMPORARY
            if not line.endswith(b"\n"):
                return 0
            words = line.decode("utf-8", "replace").strip()
            verb = words.partition(" ")[0].upper()
            if verb == "QUIT":
                self._reply("221 bye")
                return 0
            self._command(verb, words[len(verb) :].strip())

    def _command(self, verb: str, rest: str) -> None:
        match verb:
            case "EHLO":
                self._reset()
                for line in ("250-sendmail of the panel", "250-8BITMIME", "250-PIPELINING", f"250 SIZE {MOST_BYTES}"):
                    self._reply(line)
            case "HELO" | "RSET":
                self._reset()
                self._reply("250 OK")
            case "NOOP":
                self._reply("250 OK")
            case "MAIL":
                self._from(rest)
            case "RCPT":
                self._to(rest)
            case "DATA":
                self._data()
            case _:
                self._reply("502 not known here")

    def _from(self, rest: str) -> None:
        path = _path(rest, "FROM:")
        if path is None:
            return self._reply("501 MAIL FROM:<address> is wanted")
        self._reset()
        try:
            self._sender = _sender(path)
        except HandInError as failure:
            return self._reply(f"553 {failure}")
        self._mail = True
        return self._reply("250 OK")

    def _to(self, rest: str) -> None:
        path = _path(rest, "TO:")
        if path is None or not self._mail:
            return self._reply("503 MAIL comes first" if path is not None else "501 RCPT TO:<address> is wanted")
        try:
            self._recipients = unique([*self._recipients, address(path)])
        except MessageError as error:
            return self._reply(f"553 {error}")
        return self._reply("250 OK")

    def _data(self) -> None:
        if not self._recipients:
            return self._reply("503 RCPT comes first")
        self._reply("354 go on")
        lines, size = [], 0
        while (line := self._input.line(MOST_BYTES)) not in (b".\r\n", b".\n"):
            if not line.endswith(b"\n"):
                raise HandInError("the message did not end; nothing was sent", TEMPORARY)
            size += len(line)
            if size <= MOST_BYTES:
                lines.append(line[1:] if line.startswith(b".") else line)
        try:
            if size > MOST_BYTES:
                raise MessageError(f"the message has more than {MOST_BYTES >> 20} MiB")
            hand_in(Draft.parse(b"".join(lines)), Envelope(self._sender, self._recipients, self._full_name))
        except HandInError as failure:
            self._reply(f"{451 if failure.status == TEMPORARY else 554} {failure}")
        except MessageError as error:
            self._reply(f"554 {error}")
        else:
            self._reply("250 accepted")
        return self._reset()

    def _reset(self) -> None:
        self._sender, self._mail, self._recipients = None, False, []

    def _reply(self, text: str) -> None:
        # The answer is one line, whatever line breaks an error's message contains.
        sys.stdout.write(f"{' '.join(text.split())}\r\n")
        sys.stdout.flush()


def _path(rest: str, word: str) -> str | None:
    """The address between the brackets of `FROM:<ada@example.org> SIZE=123`."""
    if not rest.upper().startswith(word):
        return None
    path, closed, _ = rest[len(word) :].strip().removeprefix("<").partition(">")
    return path if closed else None


def _sender(text: str) -> str | None:
    """The sender's address; None if it has no domain, as when a program gives the account's name: the core then uses
    another sender."""
    plain = text.strip().strip("<>")
    if "@" not in plain:
        return None
    try:
        return address(plain)
    except MessageError as error:
        raise HandInError(f"the sender is not an address: {error}", UNAVAILABLE) from None


def _whole_input() -> bytes:
    pieces, size = [], 0
    while piece := _piece(_INPUT_SECONDS):
        size += len(piece)
        if size > MOST_BYTES:
            raise MessageError(f"the message has more than {MOST_BYTES >> 20} MiB")
        pieces.append(piece)
    return b"".join(pieces)


def _piece(seconds: float) -> bytes:
    ready, _, _ = select.select([0], [], [], seconds)
    if not ready:
        raise TimeoutError(errno.ETIMEDOUT, "nothing came in time")
    return os.read(0, 65536)


def _until_dot(raw: bytes) -> bytes:
    """The part of the message before a line with only a dot, which ends the message unless the program has given -i."""
    if raw.startswith((b".\n", b".\r\n")):
        return b""
    ends = [end for mark in (b"\n.\n", b"\n.\r\n") if (end := raw.find(mark)) >= 0]
    return raw[: min(ends) + 1] if ends else raw


def _say(message: str, status: int) -> int:
    print(f"sendmail: {' '.join(message.split())}", file=sys.stderr)
    return status


def start() -> NoReturn:
    """What `sbin/sendmail` calls."""
    status = main(sys.argv[1:])
    sys.stderr.flush()
    # Output that nobody reads any longer is no reason to wait.
    os._exit(status)
