"""Public keys of people: one that OpenSSH accepts is taken whole, and one that it would pass over is refused."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from svc_common.errors import ServiceError
from svc_common.public_keys import parse_public_key

MADE = (
    ("ed25519", 256),
    ("rsa", 1024),
    ("rsa", 4096),
    ("ecdsa", 256),
    ("ecdsa", 384),
    ("ecdsa", 521),
)
POINT = bytes.fromhex(  # the generator of P-256 (SEC 2, 2.4.2)
    "046b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296"
    "4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5"
)
APPLICATION = b"ssh:"


def line(kind: str, *fields: bytes, behind: bytes = b"") -> str:
    blob = b"".join(len(each).to_bytes(4, "big") + each for each in (kind.encode(), *fields)) + behind
    return f"{kind} {base64.b64encode(blob).decode()} ada@laptop"


def made(kind: str, bits: int, folder: Path) -> str:
    path = folder / "key"
    command: Sequence[str | Path] = ("ssh-keygen", "-q", "-t", kind, "-b", str(bits), "-N", "", "-C", "a b", "-f", path)
    subprocess.run(command, check=True)
    return path.with_suffix(".pub").read_text()


@pytest.mark.parametrize(("kind", "bits"), MADE)
def test_a_key_is_taken_whole_or_not_at_all(kind: str, bits: int, tmp_path: Path) -> None:
    text = made(kind, bits, tmp_path)
    name, encoded, comment = text.strip().split(None, 2)
    blob = base64.b64decode(encoded)
    shown = subprocess.run(["ssh-keygen", "-lf", tmp_path / "key.pub"], capture_output=True, check=True).stdout
    stored, fingerprint = parse_public_key(text)
    assert (stored, shown.decode().split()[1]) == (text.strip(), fingerprint)
    for damaged in (*(blob[:length] for length in range(len(blob))), blob + b"\0", blob + blob):
        with pytest.raises(ServiceError):
            parse_public_key(f"{name} {base64.b64encode(damaged).decode()} {comment}")


@pytest.mark.parametrize(
    "key",
    [
        line("sk-ssh-ed25519@openssh.com", bytes(32), APPLICATION),
        line("sk-ecdsa-sha2-nistp256@openssh.com", b"nistp256", POINT, APPLICATION),
    ],
    ids=["ed25519", "ecdsa"],
)
def test_a_security_keys_key_is_taken(key: str) -> None:
    assert parse_public_key(key)[0] == key


IMPOSSIBLE = {
    "ed25519-short": line("ssh-ed25519", bytes(31)),
    "ed25519-with-more-behind": line("ssh-ed25519", bytes(32), behind=b"\0"),
    "ed25519-of-two": line("ssh-ed25519", bytes(32), bytes(32)),
    "rsa-of-512-bits": line("ssh-rsa", b"\1\0\1", b"\0" + b"\xff" * 64),
    "rsa-of-too-many-bits": line("ssh-rsa", b"\1\0\1", b"\0" + b"\xff" * 2049),
    "rsa-negative": line("ssh-rsa", b"\1\0\1", b"\xff" * 256),
    "rsa-even-exponent": line("ssh-rsa", b"\2", b"\0" + b"\xff" * 256),
    "rsa-without-a-modulus": line("ssh-rsa", b"\1\0\1"),
    "ecdsa-of-another-curve": line("ecdsa-sha2-nistp256", b"nistp384", POINT),
    "ecdsa-not-on-the-curve": line("ecdsa-sha2-nistp256", b"nistp256", POINT[:-1] + b"\xf4"),
    "ecdsa-compressed": line("ecdsa-sha2-nistp256", b"nistp256", b"\3" + POINT[1:33]),
    "ecdsa-cut-off": line("ecdsa-sha2-nistp256", b"nistp256", POINT[:40]),
    "security-key-without-application": line("sk-ssh-ed25519@openssh.com", bytes(32)),
    "another-kind-inside": "ssh-rsa " + line("ssh-ed25519", bytes(32)).split()[1],
}


@pytest.mark.parametrize("key", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_an_impossible_key_is_refused(key: str) -> None:
    with pytest.raises(ServiceError):
        parse_public_key(key)


@pytest.mark.parametrize(
    "mark", ["\n", "\x1b", "\x7f", "\x85", "\x9b", "\u2028", "\u2029", "\u200f", "\u202e", "\u2066"]
)
@pytest.mark.parametrize("place", ["{}", "ada{}laptop", "ada laptop{}"])
def test_a_comment_has_only_characters_that_a_name_may_have(mark: str, place: str) -> None:
    key = line("ssh-ed25519", bytes(32)).replace("ada@laptop", "")
    with pytest.raises(ServiceError):
        parse_public_key(f"{key}x{place.format(mark)}x")
    assert parse_public_key(f"{key}Zoë, \u00e9 ' \"")[0] == f"{key}Zoë, \u00e9 ' \""
