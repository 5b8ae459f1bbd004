"""How many rows a dump puts into each table is counted while it passes by, or said not to be known; never wrong."""

from __future__ import annotations

import pytest

from svc_webhost.confined import sql_rows
from svc_webhost.confined.sql_rows import RowCounter

DUMP = rb"""-- MariaDB dump 10.19  Distrib 10.11.6-MariaDB
/*!50001 CREATE VIEW `v` AS SELECT 1 AS `x`*/;
CREATE TABLE `wp_posts` (
  `id` int COMMENT 'INSERT INTO `x` VALUES (1);'
);
INSERT INTO `wp_posts` VALUES
(1,'a\'b),(;','x'),
(2,_binary 'it''s (''','''y'),(3,NULL,"a\"),(");
INSERT INTO `wp_posts` (`id`, `text`) VALUES (4,'line
INSERT INTO `other` VALUES (1);
more\\');
CREATE TABLE `empty` (
);
CREATE TABLE IF NOT EXISTS plain (a int);
insert into plain values (1),(now()),(concat('(',')'));
INSERT IGNORE INTO `ignored` VALUES (1);
INSERT INTO `selected` SELECT * FROM plain;
INSERT INTO `twice` VALUES (1) ON DUPLICATE KEY UPDATE a=1;
REPLACE INTO `replaced` VALUES (1);
INSERT INTO `tick``ed` VALUES (1),
(2)
;
"""
ROWS = {
    "wp_posts": 4,
    "empty": 0,
    "plain": 3,
    "ignored": None,
    "selected": None,
    "twice": None,
    "replaced": None,
    "tick`ed": 2,
}


def counted(dump: bytes, size: int) -> dict[str, int | None]:
    counter = RowCounter()
    for begin in range(0, len(dump), size):
        counter.feed(dump[begin : begin + size])
    return counter.finish()


@pytest.mark.parametrize("least", [1, 100, 1 << 18], ids=["at once", "soon", "late"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000, 1 << 20])
def test_it_is_the_same_wherever_the_dump_is_cut(monkeypatch: pytest.MonkeyPatch, least: int, size: int) -> None:
    monkeypatch.setattr(sql_rows, "_LEAST", least)

    assert counted(DUMP, size) == ROWS


def test_where_strings_are_not_written_as_usual_nothing_is_said() -> None:
    dump = b"/*!40101 SET SQL_MODE='NO_BACKSLASH_ESCAPES' */;\nINSERT INTO a VALUES ('\\'),('b');\n"

    assert counted(dump, 1000) == {}


def test_a_dump_that_ends_within_a_row_does_not_tell_how_many_the_table_has() -> None:
    assert counted(b"INSERT INTO a VALUES (1),(2),('", 1000) == {"a": None}


def test_rows_of_many_lines_are_looked_at_a_few_times_and_not_for_each_line(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0
    look = RowCounter._look

    def counts(self: RowCounter, *, last: bool) -> None:
        nonlocal looked
        looked += 1
        look(self, last=last)

    monkeypatch.setattr(RowCounter, "_look", counts)
    dump = b"INSERT INTO a VALUES (1,'" + b"a line\n" * 1_000_000 + b"');\n"

    assert counted(dump, 7000) == {"a": 1}
    assert looked < 10
