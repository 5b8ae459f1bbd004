"""Folders that are read by SFTP: from OpenSSH's server as tar packs them, and from one that says what none does."""

from __future__ import annotations

import io
import os
import shutil
import stat
import struct
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc_webhost.confined.other_host import FetchError
from svc_webhost.confined.sftp_client import EndedError, Entry, RefusedError, SftpClient
from svc_webhost.confined.sftp_tree import tree

STATUS, HANDLE, DATA, NAME, ATTRS = 101, 102, 103, 104, 105
VERSION = b"\x02" + struct.pack(">I", 3)
NOBODY = 65534
Described = dict[str, tuple[bytes, int, int, str, bytes]]


@contextmanager
def served(*, uid: int | None = None) -> Iterator[SftpClient]:
    """By OpenSSH, of which this process is the other side."""
    process = subprocess.Popen(
        ["/usr/lib/openssh/sftp-server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=uid
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        client = SftpClient(process.stdin.fileno(), process.stdout.fileno(), 20)
        client.handshake()
        yield client
        process.stdin.close()


@pytest.fixture
def site() -> Iterator[Path]:
    """Where everybody may look."""
    folder = Path(tempfile.mkdtemp(prefix="svc-sftp-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def packed(client: SftpClient, folder: Path) -> Described:
    """What an archive of the tree has, as tar reads it."""
    archive = io.BytesIO()
    for told, blocks in tree(client, str(folder)):
        content = b"".join(blocks)
        told.size = len(content)
        archive.write(told.tobuf(tarfile.GNU_FORMAT) + content + b"\0" * (-len(content) % 512))
    archive.write(b"\0" * 1024)
    return described(archive.getvalue())


def packed_by_tar(folder: Path) -> Described:
    done = subprocess.run(["tar", "-C", "/", "-cf", "-", f".{folder}"], stdout=subprocess.PIPE, check=True)
    return described(done.stdout)


def described(archive: bytes) -> Described:
    found = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        for one in opened:
            content = opened.extractfile(one) if one.isfile() else None
            read = b"" if content is None else content.read()
            # The mode of a link says nothing.
            mode = 0 if one.issym() else one.mode
            found[one.name.removesuffix("/")] = (one.type, mode, int(one.mtime), one.linkname, read)
    return found


def test_a_site_comes_as_tar_packs_it(site: Path) -> None:
    for number in range(150):  # More than are asked for at once.
        file = site / f"cache/{number % 7}/{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * number * 997)
    for name, size in {"empty": 0, "block": 1 << 15, "beyond": (1 << 15) + 1, "large": 5_000_001}.items():
        (site / name).write_bytes(os.urandom(size))
    (site / "größe 'x'\n.php").write_text("<?php")
    os.close(os.open(os.fsencode(site) + b"/caf\xe9", os.O_CREAT))
    (site / ("d" * 200)).mkdir()
    (site / ("d" * 200) / ("f" * 200)).write_text("a long name")
    (site / "latest").symlink_to("cache/1")
    (site / "nowhere").symlink_to("../gone/" + "x" * 150)
    (site / "large").chmod(0o600)
    (site / "folder").mkdir(mode=0o2750)
    os.utime(site / "large", (1_000_000_000, 1_000_000_000))

    with served() as client:
        found = packed(client, site)

    assert found == packed_by_tar(site)
    assert len(found) > 165


def test_sockets_and_pipes_are_left_out_and_no_link_is_followed(site: Path) -> None:
    os.mkfifo(site / "pipe")
    (site / "up").symlink_to("..")

    with served() as client:
        found = packed(client, site)

    assert set(found) == {f".{site}", f".{site}/up"}


@pytest.mark.parametrize("folder", [False, True], ids=["file", "folder"])
def test_what_may_not_be_read_is_named(site: Path, folder: bool) -> None:
    secret = site / "secret"
    if folder:
        secret.mkdir()
    else:
        secret.write_text("x")
    secret.chmod(0)

    with served(uid=NOBODY) as client, pytest.raises(FetchError, match=f"{secret}: Permission denied"):
        packed(client, site)


def test_a_folder_that_is_not_there_is_named(site: Path) -> None:
    with served() as client, pytest.raises(FetchError, match=f"{site}/none: No such file"):
        packed(client, site / "none")


def test_what_vanishes_meanwhile_is_left_out_and_what_is_shortened_comes_as_it_is(site: Path) -> None:
    for name in ("gone", "kept", "shortened"):
        (site / name).write_bytes(b"x" * 100_000)
    entries = [Entry(os.fsencode(site / name), stat.S_IFREG, 100_000, 0) for name in ("gone", "kept", "shortened")]
    (site / "gone").unlink()
    os.truncate(site / "shortened", 70_000)

    with served() as client:
        gone, *found = [
            content if isinstance(content, RefusedError) else b"".join(content)
            for _, content in client.contents(entries)
        ]

    assert isinstance(gone, RefusedError)
    assert gone.gone
    assert found == [b"x" * 100_000, b"x" * 70_000]


@contextmanager
def saying(*packets: bytes, ends: bool = True) -> Iterator[SftpClient]:
    """Another side that says so, whatever it is asked."""
    with scripted(b"".join(struct.pack(">I", len(packet)) + packet for packet in packets), ends=ends) as client:
        yield client


@contextmanager
def scripted(said: bytes, *, ends: bool = True) -> Iterator[SftpClient]:
    asked, asks = os.pipe()
    answered, answers = os.pipe()
    os.write(answers, said)
    if ends:
        os.close(answers)
    try:
        yield SftpClient(asks, answered, 0.01)
    finally:
        for descriptor in (asked, asks, answered, *(() if ends else (answers,))):
            os.close(descriptor)


def read(client: SftpClient) -> None:
    client.handshake()
    for found in tree(client, "/www"):
        list(found.blocks)


def text(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


def answer(kind: int, number: int, content: bytes) -> bytes:
    return bytes([kind]) + struct.pack(">I", number) + content


def name(path: bytes, mode: int | None = stat.S_IFREG, size: int = 10) -> bytes:
    said = 0x1 | (0x4 if mode is not None else 0)
    attributes = struct.pack(">IQ", said, size) + (struct.pack(">I", mode) if mode is not None else b"")
    return struct.pack(">I", 1) + text(path) + text(b"") + attributes


THERE = answer(ATTRS, 1, struct.pack(">II", 0x4, stat.S_IFDIR | 0o755))
OPENED = answer(HANDLE, 1, text(b"h"))
ENDED = struct.pack(">I", 1) + text(b"") + text(b"")


@pytest.mark.parametrize("path", [b"a/b", b"../out", b"/etc/passwd", b"a\0b", b""])
def test_a_name_that_is_none_of_one_folder_ends_it(path: bytes) -> None:
    with saying(VERSION, OPENED, answer(NAME, 2, name(path))) as client:
        client.handshake()
        with pytest.raises(FetchError, match="file name that is not valid"):
            client.entries(b"/www")


@pytest.mark.parametrize("block", [b"", b"x" * 11], ids=["nothing", "more"])
def test_other_bytes_than_were_asked_for_end_it(block: bytes) -> None:
    with saying(VERSION, OPENED, answer(DATA, 2, text(block))) as client:
        client.handshake()
        [(_, content)] = client.contents([Entry(b"/www/a", stat.S_IFREG, 10, 0)])
        assert not isinstance(content, RefusedError)
        with pytest.raises(FetchError, match="other bytes"):
            list(content)


@pytest.mark.parametrize(
    ("packets", "said"),
    [
        ([b"\x02" + struct.pack(">I", 2)], "SFTP version is not supported"),
        ([VERSION, answer(HANDLE, 7, text(b"h"))], "unexpected answer"),
        ([VERSION, answer(DATA, 1, text(b"h"))], "unexpected kind"),
        ([VERSION, answer(ATTRS, 1, struct.pack(">I", 0))], "which entries are files"),
        ([VERSION, THERE, answer(HANDLE, 2, struct.pack(">I", 1 << 31))], "not answer as an SFTP server"),
        (
            [VERSION, THERE, answer(HANDLE, 2, text(b"h")), answer(NAME, 3, struct.pack(">I", 1 << 31))],
            "not answer as an SFTP",
        ),
        ([VERSION, answer(STATUS, 1, struct.pack(">I", 3) + text(b"not\x1b you"))], "not. you"),
    ],
    ids=["version", "number", "kind", "no mode", "length", "names", "words"],
)
def test_what_no_server_says_ends_it(packets: list[bytes], said: str) -> None:
    with saying(*packets) as client, pytest.raises(FetchError, match=said):
        read(client)


def test_a_packet_is_not_kept_however_large_it_is_said_to_be() -> None:
    with (
        scripted(struct.pack(">I", 1 << 31) + b"\x02") as client,
        pytest.raises(FetchError, match="not answer as an SFTP"),
    ):
        client.handshake()


def test_a_side_that_says_nothing_is_not_waited_for_and_one_that_leaves_has_ended() -> None:
    with saying(VERSION, ends=False) as client:
        client.handshake()
        with pytest.raises(FetchError, match="sent nothing for"):
            client.entries(b"/www")
    with saying(VERSION) as client:
        client.handshake()
        with pytest.raises(EndedError):
            client.entries(b"/www")


def test_an_entry_without_a_mode_is_looked_at(site: Path) -> None:
    mode = struct.pack(">IQI", 0x1 | 0x4, 3, stat.S_IFLNK | 0o777)
    with saying(
        *(VERSION, OPENED, answer(NAME, 2, name(b"link", None))),
        *(answer(ATTRS, 3, mode), answer(STATUS, 4, ENDED)),
    ) as client:
        client.handshake()
        [found] = client.entries(b"/www/")

    assert found == Entry(b"/www/link", stat.S_IFLNK | 0o777, 3, 0)


@given(st.lists(st.binary(max_size=60), max_size=6), st.booleans())
def test_whatever_is_said_ends_in_words(packets: list[bytes], greets: bool) -> None:
    with saying(*([VERSION] if greets else []), *packets) as client:
        with suppress(FetchError, EndedError):
            read(client)
