"""Dumps of MariaDB with the addresses in them replaced: line by line, value by value, whatever bytes there are."""

from __future__ import annotations

import gzip
import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc_webhost.staging import rewrite
from svc_webhost.staging.addresses import Addresses
from svc_webhost.staging.rewrite import _escaped, _unescaped, rewritten

OLD, NEW = "shop.example", "staging.shop.example"
ADDRESSES = Addresses({OLD: NEW})
POSTS = [
    b"CREATE TABLE `wp_posts` (\n",
    b"  `ID` bigint(20) unsigned NOT NULL,\n",
    b"  `post_content` longtext,\n",
    b"  `guid` varchar(255) NOT NULL,\n",
    b"  `post_title` text,\n",
    b"  PRIMARY KEY (`ID`)\n",
    b") ENGINE=InnoDB;\n",
]


def one(*lines: bytes) -> bytes:
    return b"".join(rewritten(lines, ADDRESSES))


def test_serialised_options_keep_their_lengths() -> None:
    line = b"INSERT INTO `wp_options` VALUES\n(1,'widget','a:1:{s:1:\\\"u\\\";s:20:\\\"http://shop.example/\\\";}','yes'),\n"

    new = one(*line.splitlines(keepends=True), b"(2,'home','https://shop.example','yes');\n")

    assert b's:28:\\"http://staging.shop.example/\\";}' in new
    assert b"(2,'home','https://staging.shop.example','yes');" in new


def test_the_guid_of_posts_stays_and_nothing_else_of_them() -> None:
    row = b"INSERT INTO `wp_posts` VALUES (1,'a (b), \\'c\\' http://shop.example/x','http://shop.example/?p=1','http://shop.example');\n"

    new = one(*POSTS, row)

    assert new.endswith(
        b"(1,'a (b), \\'c\\' http://staging.shop.example/x','http://shop.example/?p=1','http://staging.shop.example');\n"
    )


def test_columns_that_are_named_are_counted_as_they_are_named() -> None:
    row = b"INSERT INTO `wp_posts` (`guid`, `post_title`) VALUES ('http://shop.example','http://shop.example');\n"

    assert one(*POSTS, row).endswith(b"VALUES ('http://shop.example','http://staging.shop.example');\n")


def test_blobs_are_looked_into() -> None:
    blob = b's:19:"http://shop.example";'
    row = b"INSERT INTO `wp_x` VALUES (0x%b,0xFF00);\n" % blob.hex().upper().encode()

    wanted = b's:27:"http://staging.shop.example";'.hex().upper().encode()
    assert one(row) == b"INSERT INTO `wp_x` VALUES (0x%b,0xFF00);\n" % wanted


def test_statements_that_are_no_data_stay() -> None:
    lines = (b"-- http://shop.example\n", b"CREATE VIEW `v` AS SELECT 'http://shop.example';\n")

    assert one(*lines) == b"".join(lines)


@given(st.binary())
def test_any_bytes_come_through_escaping(data: bytes) -> None:
    assert _unescaped(_escaped(data)) == data


def test_memory_is_bounded_by_a_row_and_not_by_a_table(tmp_path: Path) -> None:
    row = b"INSERT INTO `wp_big` VALUES (1,'" + b'x\\n\\"' * 1000 + b"x" * 500_000 + b" http://shop.example');\n"
    with gzip.open(tmp_path / "from.gz", "wb", compresslevel=1) as file:
        for _ in range(200):
            file.write(row)
    order = json.dumps({"hosts": {OLD: NEW}, "homes": None})
    limit = 80 << 20
    command = [sys.executable, "-I", "-S", rewrite.__file__, order, str(tmp_path / "from.gz"), str(tmp_path / "to.gz")]

    subprocess.run(
        command, check=True, timeout=120, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    )

    with gzip.open(tmp_path / "to.gz") as file:
        lines = sum(NEW.encode() in line for line in file)
    assert lines == 200
    assert not (tmp_path / "to.gz.part").exists()


@pytest.mark.parametrize(
    "row",
    [
        b"(1,'http://shop.example" + b'\\n\\"' * 1_000_000 + b"')",
        b"(1,'" + b"http://shop.example " * 200_000 + b"')",
        b"(1,'http://shop.example')" + b",(2,'b')" * 500_000,
    ],
    ids=["escapes", "addresses", "values"],
)
def test_memory_of_a_long_row_is_a_few_times_its_length(tmp_path: Path, row: bytes) -> None:
    with gzip.open(tmp_path / "from.gz", "wb", compresslevel=1) as file:
        file.write(b"INSERT INTO `wp_big` VALUES " + row + b";\n")

    done = rewrite_in(tmp_path, 80 << 20)

    assert done.returncode == 0, done.stderr
    with gzip.open(tmp_path / "to.gz") as file:
        assert NEW.encode() in file.read()


def test_a_row_that_is_too_long_is_refused_and_nothing_written(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "from.gz", "wb", compresslevel=1) as file:
        file.write(b"INSERT INTO `wp_big` VALUES (1,'" + b"x" * rewrite.MOST_LINE + b"');\n")

    done = rewrite_in(tmp_path, 250 << 20)

    assert done.returncode == 1
    assert done.stderr == "The dump has a row of more than 64 MiB; nothing was changed.\n"
    assert not (tmp_path / "to.gz").exists()


def rewrite_in(folder: Path, limit: int) -> subprocess.CompletedProcess[str]:
    """With so much memory for its data."""
    order = json.dumps({"hosts": {OLD: NEW}, "homes": None})
    command = [sys.executable, "-I", "-S", rewrite.__file__, order, str(folder / "from.gz"), str(folder / "to.gz")]
    return subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
    )
