"""A log is read on from a cursor, however it is rotated meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc_webhost import log_files
from svc_webhost.log_files import BadCursorError, LogPart, read_log


def read(log: Path, after: str | None, *, text: str | None = None, most: int = 1000) -> LogPart:
    return read_log(log, after=after, text=text, most=most)


def write(log: Path, first: int, count: int) -> list[str]:
    lines = [f"line {number}" for number in range(first, first + count)]
    with log.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)
    return lines


def rotate(log: Path) -> None:
    for number in (2, 1):
        older = log.with_name(f"{log.name}.{number}")
        if older.exists():
            older.rename(log.with_name(f"{log.name}.{number + 1}"))
    log.rename(log.with_name(f"{log.name}.1"))


def test_without_a_cursor_the_last_lines_are_given(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    lines = write(log, 0, 50)

    part = read(log, None, most=3)

    assert part.lines == lines[-3:]
    assert not part.more
    assert read(log, part.cursor).lines == []


def test_where_nothing_was_logged_there_is_nothing_to_read(tmp_path: Path) -> None:
    part = read(tmp_path / "access.log", None)

    assert part == LogPart([], None, more=False, gap=False)


def test_reading_on_neither_repeats_nor_skips_a_line_through_rotations(tmp_path: Path) -> None:
    log, seen = tmp_path / "access.log", list[str]()
    written = write(log, 0, 10)
    part = read(log, None)
    seen += part.lines

    for turn in range(1, 4):
        written += write(log, 10 * turn, 5)
        rotate(log)
        written += write(log, 10 * turn + 5, 5)
        while True:
            part = read(log, part.cursor, most=4)
            seen += part.lines
            assert not part.gap
            if not part.more:
                break

    assert seen == written


def test_a_cursor_of_an_empty_log_reads_what_is_written_next(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.touch()
    cursor = read(log, None).cursor
    written = write(log, 0, 2)

    assert read(log, cursor).lines == written


def test_lines_whose_file_is_gone_are_a_gap(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    write(log, 0, 5)
    cursor = read(log, None).cursor
    rotate(log)
    (tmp_path / "access.log.1").rename(tmp_path / "elsewhere")
    written = write(log, 5, 5)

    part = read(log, cursor)

    assert part.gap
    assert part.lines == written


def test_another_file_with_the_same_inode_is_not_taken_for_it(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    write(log, 0, 5)
    cursor = read(log, None).cursor
    log.write_text("something else that is longer than what was read before\nand more\n")

    part = read(log, cursor)

    assert part.gap
    assert part.lines[0].startswith("something else")


def test_a_line_that_is_being_written_is_left_until_it_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text("whole\nhal")
    part = read(log, None)
    with log.open("a") as file:
        file.write("f\n")

    assert part.lines == ["whole"]
    assert read(log, part.cursor).lines == ["half"]


def test_a_search_is_literal_and_its_cursor_is_behind_all_that_was_looked_at(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text("GET /a.b\nGET /aXb\nGET /(a.b)\nPOST /\n")

    part = read(log, None, text="a.b")

    assert part.lines == ["GET /a.b", "GET /(a.b)"]
    assert read(log, part.cursor, text="a.b").lines == []


def test_a_long_line_is_cut_and_what_is_no_text_is_shown_as_such(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_bytes(b"x" * 100_000 + b"\n\xff\xfe\nend\n")

    part = read(log, None)

    assert [len(line) for line in part.lines] == [log_files.LONGEST_LINE, 2, 3]
    assert part.lines[1] == "\N{REPLACEMENT CHARACTER}" * 2


def test_a_million_lines_are_read_in_bounded_parts(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.touch()
    cursor = read(log, None).cursor
    log.write_text("".join(f"line {number} and what makes it longer\n" for number in range(1_000_000)))
    parts = []

    while True:
        part = read(log, cursor, text="line 99999")
        parts.append(part)
        cursor = part.cursor
        if not part.more:
            break

    found = [line for part in parts for line in part.lines]
    assert len(found) == 11
    assert len(parts) > 3


@pytest.mark.parametrize("cursor", ["", "x", "1-2", "1-2-3", "-1-2-00000000", "../../etc/passwd", "1-2-000000000"])
def test_what_is_no_cursor_is_refused(tmp_path: Path, cursor: str) -> None:
    with pytest.raises(BadCursorError):
        read(tmp_path / "access.log", cursor)
