"""Accounts that an import has read stay readable when a release takes the place of another, and when it is put back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from svc_webhost.archives.model import (
    Account,
    Format,
    FoundCertificate,
    FoundDatabase,
    FoundPasswords,
    FoundRecord,
    FoundRules,
    FoundSite,
    FoundTask,
    FoundZone,
    account_of,
)

KNOWN_BEFORE = {
    "sites": """domain root aliases without home application renamed php extensions command_line_php
        command_line_extensions wordpress applications uploads database files size old_home home_in_archive""",
    "databases": "name engine dump site users",
    "zones": "name records left",
    "certificates": "domain files",
    "passwords": "site path named file logins left problem",
    "tasks": "cron command",
}
"""The members of each item that the release before knows, and refuses others. It ignores other kinds of items."""


@pytest.fixture
def account() -> Account:
    database = FoundDatabase("ada_shop", "mariadb", "mysql/ada_shop.sql")
    database.add_user("ada", ["ALL"])
    database.add_user("ada_reader", ["SELECT"], ["10.0.0.7"])
    database.add_user("ada_writer", ["SELECT", "INSERT"])
    return Account(
        Format.CPANEL,
        sites=[
            FoundSite("a.example", "homedir/public_html", database="ada_shop", configuration="homedir/app/.env"),
            FoundSite("b.example", "homedir/b"),
        ],
        databases=[FoundDatabase("ada_other", "mariadb", "mysql/ada_other.sql"), database],
        zones=[FoundZone("a.example", [FoundRecord("@", 300, "A", {"address": "192.0.2.1"})], [("x", "why")])],
        certificates=[FoundCertificate("a.example", ["ssl/a.pem"])],
        passwords=[FoundPasswords("a.example", "/in", "/home/ada/.htpasswd", None, left=[("bob", "why")])],
        rules=[FoundRules("a.example", ["denied paths"], ["RewriteMap"], 1)],
        tasks=[FoundTask("0 0 * * *", "true")],
    )


def kept(account: Account) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(json.dumps(account.record()))
    return record


def test_the_release_before_reads_an_account_of_this_one(account: Account) -> None:
    record = kept(account)

    for kind, names in KNOWN_BEFORE.items():
        assert record[kind]
        assert {name for each in record[kind] for name in each} <= set(names.split()), kind
    assert account_of(record) == account


def test_an_account_of_the_release_before_is_read(account: Account) -> None:
    record = kept(account)
    del record["added"], record["rules"]

    read = account_of(record)

    assert [site.domain for site in read.sites] == ["a.example", "b.example"]
    assert (read.databases[1].users, read.databases[1].readers) == (["ada", "ada_reader", "ada_writer"], [])


def test_members_that_only_a_later_release_knows_are_ignored(account: Account) -> None:
    record = kept(account)
    for kind in (*KNOWN_BEFORE, "rules"):
        for each in record[kind]:
            each["later"] = "something"
    record["added"]["sites"][0]["later"] = record["later"] = record["added"]["later"] = ["something"]

    assert account_of(record) == account
