"""Dumps of other hosts are adapted to the database that they go into, and their data is left as it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc_webhost.confined import sql_statements
from svc_webhost.confined.sql_adapt import adaptation_of
from svc_webhost.confined.sql_look import NoDumpError
from tests.support.foreign_dumps import MYSQL_8, PG_17

MYSQL_8_ADAPTED = rb"""-- MySQL dump 10.13  Distrib 8.0.36, for Linux (x86_64)
/*!40101 SET @OLD_CHARACTER_SET_CLIENT=@@CHARACTER_SET_CLIENT */;





CREATE TABLE `u` (
  `n` varchar(200) COLLATE utf8mb4_unicode_520_ci DEFAULT 'utf8mb4_0900_ai_ci', -- don't
  `c` varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_uca1400_as_cs COMMENT 'USE `other`;'
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_unicode_520_ci;
INSERT INTO `u` VALUES ('utf8mb4_0900_ai_ci','it''s; \'USE `other`;'),('
CREATE DEFINER=`root`@`%` TRIGGER x;
GRANT ALL ON *.* TO x;','b');
/*!50003 SET collation_connection  = utf8mb4_unicode_520_ci */ ;
DELIMITER ;;
/*!50003 CREATE*/ /*!50017 */ /*!50003 TRIGGER `t` BEFORE INSERT ON `u` FOR EACH ROW BEGIN
  SET NEW.n = 'DEFINER=`root`@`%`'; SET NEW.c = 'x;;y';
END */;;
DELIMITER ;
/*!50001 CREATE ALGORITHM=UNDEFINED */
/*!50013  SQL SECURITY DEFINER */
/*!50001 VIEW `v` AS select `u`.`n` AS `n` from `u`*/;

-- Dump completed on 2026-01-02  3:04:05
"""
PG_17_ADAPTED = rb"""--
-- PostgreSQL database dump
--
-- Dumped by pg_dump version 17.2
SET statement_timeout = 0;

CREATE SCHEMA IF NOT EXISTS public;


CREATE FUNCTION public.f() RETURNS trigger LANGUAGE plpgsql AS $_$
BEGIN
  -- it's ours
  EXECUTE 'ALTER TABLE x OWNER TO y; SELECT $1' USING 1;
  RETURN NEW;
END
$_$;

CREATE TABLE public."o'r;d" (
    id integer, word text DEFAULT E'it\'s; GRANT ALL'::text, "when" date DEFAULT date'2026-01-02');

COPY public."o'r;d" (id, word) FROM stdin;
1	ALTER TABLE x OWNER TO y;
2	$_$ it's "
3	\\.
\.

COPY public.empty (id) FROM stdin;
\.



-- PostgreSQL database dump complete
"""


def adapted(dialect: str, dump: bytes, size: int = 1 << 20) -> bytes:
    _, splitter = adaptation_of(dialect)
    blocks = [dump[begin : begin + size] for begin in range(0, len(dump), size)]
    return b"".join(piece for block in blocks for piece in splitter.feed(block)) + b"".join(
        splitter.feed(b"", last=True)
    )


def notes(dialect: str, dump: bytes) -> str:
    adaptation, splitter = adaptation_of(dialect)
    for _ in splitter.feed(dump, last=True):
        pass
    return "\n".join(adaptation.notes())


@pytest.mark.parametrize("ahead", [130, 4096])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000, 1 << 20])
def test_a_dump_of_mysql_8_is_adapted_wherever_it_is_cut(
    monkeypatch: pytest.MonkeyPatch, ahead: int, size: int
) -> None:
    monkeypatch.setattr(sql_statements, "_AHEAD", ahead)

    assert adapted("mariadb", MYSQL_8, size).decode() == MYSQL_8_ADAPTED.decode()


@pytest.mark.parametrize("ahead", [130, 4096])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000, 1 << 20])
def test_a_dump_of_postgresql_17_is_adapted_wherever_it_is_cut(
    monkeypatch: pytest.MonkeyPatch, ahead: int, size: int
) -> None:
    monkeypatch.setattr(sql_statements, "_AHEAD", ahead)

    assert adapted("postgresql", PG_17, size).decode() == PG_17_ADAPTED.decode()


def test_what_was_changed_is_said() -> None:
    said = notes("mariadb", MYSQL_8)

    assert "database's owner: 2." in said
    assert "utf8mb4_0900_ai_ci by utf8mb4_unicode_520_ci" in said
    assert "CREATE DATABASE (1), GLOBAL (1), SQL_LOG_BIN (3), USE (1)" in said
    assert "Using a password on the command line interface can be insecure" in said
    assert "OWNER TO (3), REVOKE (1), TRANSACTION_TIMEOUT (1)" in notes("postgresql", PG_17)


@pytest.mark.parametrize(
    ("statement", "result"),
    [
        (
            "CREATE ALGORITHM=UNDEFINED DEFINER=`shop`@`localhost` SQL SECURITY DEFINER VIEW `v` AS select 1",
            "CREATE ALGORITHM=UNDEFINED  SQL SECURITY DEFINER VIEW `v` AS select 1",
        ),
        ("CREATE OR REPLACE DEFINER = root@'%' PROCEDURE p() SELECT 1", "CREATE OR REPLACE  PROCEDURE p() SELECT 1"),
        (
            "create definer=current_user() function f() returns int",
            "create  function f() returns int",
        ),
        (
            "CREATE VIEW v AS SELECT definer=x FROM t WHERE definer='a'@b",
            "CREATE VIEW v AS SELECT definer=x FROM t WHERE definer='a'@b",
        ),
        ("CREATE TABLE `definer` (`use` int)", "CREATE TABLE `definer` (`use` int)"),
        ("UPDATE t SET a='utf8mb4_0900_ai_ci'", "UPDATE t SET a='utf8mb4_0900_ai_ci'"),
        ("SET NAMES utf8mb4 COLLATE 'utf8mb4_0900_bin'", "SET NAMES utf8mb4 COLLATE 'utf8mb4_bin'"),
        ("SET @old = @@GLOBAL.sql_mode", "SET @old = @@GLOBAL.sql_mode"),
        ("LOCK TABLES `t` WRITE", "LOCK TABLES `t` WRITE"),
        ("ALTER DATABASE COLLATE latin1_bin", "ALTER DATABASE COLLATE latin1_bin"),
        ("ALTER DATABASE `shop` CHARACTER SET utf8mb4", "ALTER DATABASE CHARACTER SET utf8mb4"),
    ],
)
def test_a_statement_of_mariadb(statement: str, result: str) -> None:
    assert adapted("mariadb", f"{statement};\n".encode()).decode() == f"{result};\n"


@pytest.mark.parametrize(
    ("dialect", "dump"),
    [
        ("mariadb", "CREATE DATABASE `a`;\nUSE `a`;\nCREATE TABLE t (i int);\nUSE b;\nCREATE TABLE t (i int);\n"),
        ("postgresql", "\\connect shop\nCREATE TABLE t (i int);\n\\connect other\n"),
    ],
)
def test_a_dump_of_several_databases_is_refused(dialect: str, dump: str) -> None:
    with pytest.raises(NoDumpError, match="more than one database"):
        adapted(dialect, dump.encode())


def test_the_same_database_may_be_named_again() -> None:
    assert adapted("mariadb", b"USE `a`;\nSELECT 1;\nUSE a;\n").split() == [b"SELECT", b"1;"]


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_a_routine_comes_with_what_a_backslash_is_in_it(size: int) -> None:
    dump = rb"""/*!50003 SET @saved_sql_mode = @@sql_mode */ ;
/*!50003 SET sql_mode = 'STRICT_ALL_TABLES,NO_BACKSLASH_ESCAPES' */ ;
DELIMITER ;;
CREATE DEFINER=`root`@`%` FUNCTION `f`() RETURNS text RETURN '\' ;;
DELIMITER ;
SELECT '\'; USE `a`; SELECT '\';
/*!50003 SET sql_mode = @saved_sql_mode */ ;
INSERT INTO t VALUES ('\'; USE `b`;');
CREATE DEFINER=`root`@`%` VIEW v AS SELECT '\'; USE `c`;';
"""

    assert adapted("mariadb", dump, size) == dump.replace(b"DEFINER=`root`@`%`", b"").replace(b"USE `a`;", b"")


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_where_a_dump_makes_backslashes_escapes_nothing_is_changed_any_more(size: int) -> None:
    dump = rb"SET standard_conforming_strings = off; INSERT INTO t VALUES ('it\'s; GRANT x;'); SET ROLE x;"

    assert adapted("postgresql", dump, size) == dump
    assert adapted("postgresql", b"SET standard_conforming_strings = on; SET ROLE x;").strip().endswith(b"on;")


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_comments_of_postgresql_may_be_nested(size: int) -> None:
    dump = b"/* a /* b */ 'c */ COPY t FROM stdin;\nSET ROLE x;\n\\.\nSELECT /* /* */ ' */ 1;"

    assert adapted("postgresql", dump, size) == dump


def test_a_dump_does_not_fill_the_log_with_what_was_left_out() -> None:
    said = notes("mariadb", b"mysql: no\n" * 100_000 + b"SELECT 1;")

    assert len(said.splitlines()) == 21
    assert "99,980 more lines" in said


def test_a_dump_that_ends_within_a_statement_keeps_its_end() -> None:
    assert adapted("mariadb", b"CREATE TABLE t (a int") == b"CREATE TABLE t (a int"
    assert adapted("mariadb", b"INSERT INTO t VALUES ('a") == b"INSERT INTO t VALUES ('a"
    assert adapted("postgresql", b"COPY t FROM stdin;\n1\tb") == b"COPY t FROM stdin;\n1\tb"


SOUP = st.lists(
    st.sampled_from(
        [
            *("'", '"', "`", "\\", "\n", ";", "--", "-- ", "#", "/*", "*/", "/*!50001 ", "$$", "$a$", "E'", "e", "a"),
            *("INSERT INTO t VALUES (", "SELECT ", "DELIMITER //\n", "//", "COPY t FROM stdin;", "\n\\.\n", "$", "-"),
        ]
    ),
    max_size=40,
).map(lambda parts: "".join(parts).encode())


@given(dump=SOUP, size=st.integers(1, 40), dialect=st.sampled_from(["mariadb", "postgresql"]))
def test_what_no_rule_names_goes_through_as_it_is_wherever_it_is_cut(dump: bytes, size: int, dialect: str) -> None:
    # With so little known ahead, each token meets a cut.
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sql_statements, "_AHEAD", 24)
        assert adapted(dialect, dump, size) == dump
