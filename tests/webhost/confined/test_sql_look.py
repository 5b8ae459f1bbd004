"""What is a dump that can be loaded. The whole ones are the first and last lines of real files: of mysqldump 10.11 to
10.19, mariadb-dump 10.19-11.4, pg_dump 9 to 17, pg_dumpall, phpMyAdmin 4.0 to 5.2 and Adminer 4.2 to 5, as they lie in
public repositories, with everything between them left out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from svc_webhost.confined.sql_look import NoDumpError, SqlLook

TABLE = "CREATE TABLE `a` (`id` int);\nINSERT INTO `a` VALUES (1),(2);\n"
SAVED = "/*!40101 SET @OLD_CHARACTER_SET_CLIENT=@@CHARACTER_SET_CLIENT */;\n"
SET_BACK = "/*!40101 SET CHARACTER_SET_CLIENT=@OLD_CHARACTER_SET_CLIENT */;\n"
MYSQL_END = f"{SET_BACK}/*!40111 SET SQL_NOTES=@OLD_SQL_NOTES */;\n\n"
MYSQL = f"""-- MySQL dump 10.13  Distrib 8.0.36, for Linux (x86_64)
--
-- Host: localhost    Database: shop
-- ------------------------------------------------------
-- Server version\t8.0.36
{SAVED}{TABLE}{MYSQL_END}"""
PHPMYADMIN = f"""-- phpMyAdmin SQL Dump
-- version 5.2.1
-- https://www.phpmyadmin.net/
--
-- Hôte : 127.0.0.1

SET SQL_MODE = "NO_AUTO_VALUE_ON_ZERO";
START TRANSACTION;
SET time_zone = "+00:00";


{SAVED}{TABLE}"""
POSTGRES = """--
-- PostgreSQL database dump
--

-- Dumped from database version 15.14
-- Dumped by pg_dump version 15.14
-- Started on 2026-01-02 03:04:05 UTC

SET statement_timeout = 0;
CREATE TABLE public.a (id integer);
COPY public.a (id) FROM stdin;
1
\\.

"""
ROLES = "--\n-- PostgreSQL database cluster dump\n--\n\nSET default_transaction_read_only = off;\n\n"
ADMINER = f"-- Adminer 4.8.1 MySQL 8.0.29-0ubuntu0.20.04.3 dump\n\nSET NAMES utf8;\n\n{TABLE}\n\n"

WHOLE = {
    "mysqldump": ("mariadb", f"{MYSQL}-- Dump completed on 2026-01-02  3:04:05\n"),
    "mysqldump --skip-dump-date": ("mariadb", f"{MYSQL}-- Dump completed\n"),
    "mysqldump, blanks behind it": ("mariadb", f"{MYSQL}-- Dump completed on 2018-01-15  1:56:53\n" + "\n \r\n" * 9000),
    "mysqldump, lines of a host behind it": (
        "mariadb",
        f"{MYSQL}-- Dump completed on 2018-01-15  1:56:53\nSET FOREIGN_KEY_CHECKS=1;\n-- backup of example.com done\n",
    ),
    "mysqldump, CRLF": ("mariadb", f"{MYSQL}-- Dump completed on 2026-01-02  3:04:05\n".replace("\n", "\r\n")),
    "mysqldump, BOM": ("mariadb", f"\ufeff{MYSQL}-- Dump completed on 2026-01-02  3:04:05\n"),
    "mysqldump, lines before it": (
        "mariadb",
        f"-- backup of example.com\n-- by the host\n\n{MYSQL}-- Dump completed on 2026-01-02  3:04:05\n",
    ),
    "two of mysqldump": ("mariadb", f"{MYSQL}-- Dump completed on 2026-01-02  3:04:05\n" * 2),
    "mysqldump of MySQL 4.0, which had no such line": (
        "mariadb",
        f"-- MySQL dump 9.11\n--\n-- Host: localhost    Database: shop\n{TABLE}",
    ),
    "mysqldump --skip-comments": ("mariadb", f"{SAVED}{TABLE}{MYSQL_END}"),
    "mysqldump --compact": ("mariadb", TABLE),
    "mariadb-dump, with its sandbox line": (
        "mariadb",
        "/*M!999999\\- enable the sandbox mode */ \n-- MariaDB dump 10.19-11.4.2-MariaDB, for Linux (x86_64)\n"
        f"--\n{SAVED}{TABLE}{MYSQL_END}-- Dump completed on 2026-01-02  3:04:05\n",
    ),
    "mariadb-dump --skip-comments": ("mariadb", f"/*M!999999\\- enable the sandbox mode */ \n{TABLE}"),
    "mariadb-dump of an empty database": (
        "mariadb",
        f"-- MariaDB dump 10.19  Distrib 10.11.6\n--\n{SAVED}{SET_BACK}-- Dump completed on 2026-01-02  3:04:05\n",
    ),
    "phpMyAdmin": ("mariadb", f"{PHPMYADMIN}COMMIT;\n\n{SET_BACK}"),
    "phpMyAdmin without a transaction": (
        "mariadb",
        PHPMYADMIN.replace("START TRANSACTION;\n", "") + SET_BACK,
    ),
    "phpMyAdmin without either": (
        "mariadb",
        PHPMYADMIN.replace("START TRANSACTION;\n", "").replace(SAVED, ""),
    ),
    "Adminer 4": ("mariadb", f"{ADMINER}-- 2018-07-26 15:21:32\n"),
    "Adminer 5": (
        "mariadb",
        f"-- Adminer 5.2.1 MariaDB 11.4.2 dump\n\n{TABLE}-- 2026-01-02 03:04:05 UTC\n",
    ),
    "by hand": ("mariadb", f"-- what we had\n# and a comment of MySQL\n/* and\n one */ {TABLE}"),
    "pg_dump": ("postgresql", f"{POSTGRES}--\n-- PostgreSQL database dump complete\n--\n\n"),
    "pg_dump --verbose": (
        "postgresql",
        f"{POSTGRES}-- Completed on 2026-01-02 03:04:06 UTC\n\n--\n-- PostgreSQL database dump complete\n--\n\n",
    ),
    "pg_dump, restricted": (
        "postgresql",
        POSTGRES.replace("-- Dumped from", "\\restrict abc\n\n-- Dumped from")
        + "--\n-- PostgreSQL database dump complete\n--\n\n\\unrestrict abc\n\n",
    ),
    "pg_dumpall": (
        "postgresql",
        f"{ROLES}{POSTGRES}--\n-- PostgreSQL database dump complete\n--\n\n"
        "--\n-- PostgreSQL database cluster dump complete\n--\n\n",
    ),
    "a row that looks like a beginning": (
        "postgresql",
        f"{POSTGRES}COPY b (t) FROM stdin;\n-- MySQL dump 10.13  Distrib 8.0\n-- Adminer 4.8.1 MySQL 8 dump\n\\.\n"
        "--\n-- PostgreSQL database dump complete\n--\n",
    ),
}

CUT = {
    "mysqldump": ("mariadb", MYSQL),
    "mysqldump, behind the head": ("mariadb", MYSQL[: MYSQL.index(SAVED)] + SAVED),
    "the second of two of mysqldump": ("mariadb", f"{MYSQL}-- Dump completed on 2026-01-02  3:04:05\n{MYSQL}"),
    "mariadb-dump": (
        "mariadb",
        f"/*M!999999\\- enable the sandbox mode */ \n-- MariaDB dump 10.19-11.4.2-MariaDB\n{TABLE}",
    ),
    "phpMyAdmin": ("mariadb", PHPMYADMIN),
    "phpMyAdmin, before its last lines": ("mariadb", f"{PHPMYADMIN}COMMIT;\n"),
    "Adminer": ("mariadb", ADMINER),
    "pg_dump": ("postgresql", POSTGRES),
    "pg_dumpall": ("postgresql", f"{ROLES}{POSTGRES}--\n-- PostgreSQL database dump complete\n--\n\n"),
    "the second database of pg_dumpall": (
        "postgresql",
        f"{ROLES}{POSTGRES}--\n-- PostgreSQL database dump complete\n--\n\n{POSTGRES}",
    ),
}

NONE = {
    "empty": ("mariadb", b"", "no statement"),
    "blanks": ("postgresql", b" \n\t\r\n", "no statement"),
    "a BOM": ("mariadb", b"\xef\xbb\xbf", "no statement"),
    "a comment": ("mariadb", b"-- only a comment", "no statement"),
    "comments": ("postgresql", b"-- one\n/* two\n three */\n\n", "no statement"),
    "an open comment": ("mariadb", b"/* CREATE TABLE a (id int);\n", "no statement"),
    "UTF-16": ("mariadb", b"\xff\xfe" + TABLE.encode("utf-16-le"), "UTF-16"),
    "UTF-16 the other way": ("mariadb", b"\xfe\xff" + TABLE.encode("utf-16-be"), "UTF-16"),
    "UTF-16 without a mark": ("postgresql", TABLE.encode("utf-16-le"), "UTF-16"),
    "HTML": ("mariadb", b"\n<!DOCTYPE html>\n<title>404</title>", "not SQL"),
    "a zip": ("mariadb", b"PK\x03\x04\x14", "not SQL"),
    "JSON": ("postgresql", b'[{"id": 1}]', "not SQL"),
    "a picture": ("mariadb", b"\x89PNG\r\n\x1a\nxyz", "not SQL"),
    "a program": ("mariadb", b"#!/bin/sh\x00\x01", "NUL bytes"),
    "zeros": ("mariadb", bytes(5000), "NUL bytes"),
    "zeros behind a statement, as a full disk leaves them": ("mariadb", TABLE.encode() + bytes(100), "NUL bytes"),
    "PostgreSQL's for MariaDB": ("mariadb", POSTGRES.encode(), "a dump of PostgreSQL"),
    "MariaDB's for PostgreSQL": ("postgresql", MYSQL.encode(), "a dump of MariaDB"),
    "phpMyAdmin's for PostgreSQL": ("postgresql", PHPMYADMIN.encode(), "a dump of MariaDB"),
}


def look(dialect: str, content: bytes) -> int:
    found = SqlLook(dialect)
    for begins, piece in pieces(content):
        found.feed(piece, at_line_start=begins)
    found.finish()
    return found.size


def pieces(content: bytes) -> Iterator[tuple[bool, bytes]]:
    for line in content.splitlines(keepends=True):
        yield True, line


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_dump_is_taken(name: str) -> None:
    dialect, text = WHOLE[name]

    assert look(dialect, text.encode()) == len(text.encode().removeprefix(b"\xef\xbb\xbf"))


@pytest.mark.parametrize("name", CUT)
def test_a_dump_that_its_writer_did_not_finish_is_refused(name: str) -> None:
    dialect, text = CUT[name]

    with pytest.raises(NoDumpError, match="is incomplete"):
        look(dialect, text.encode())


@pytest.mark.parametrize("name", [name for name in WHOLE if "compact" not in name])
def test_every_writer_that_ends_with_a_line_of_its_own_is_refused_without_it(name: str) -> None:
    """All but those that say neither who they are nor that they have ended."""
    dialect, text = WHOLE[name]
    silent = ("skip-comments", "MySQL 4.0", "without either", "by hand")
    if any(word in name for word in silent):
        return
    body = text.encode()
    marks = (b"-- Dump completed", b"COMMIT;", SET_BACK.encode(), b"-- 20", b"-- PostgreSQL database dump complete")
    cut = min(at for mark in marks if (at := body.rfind(mark)) >= 0)

    with pytest.raises(NoDumpError):
        look(dialect, body[:cut])


@pytest.mark.parametrize("name", NONE)
def test_what_is_no_dump_is_refused(name: str) -> None:
    dialect, content, words = NONE[name]

    with pytest.raises(NoDumpError, match=words):
        look(dialect, content)
