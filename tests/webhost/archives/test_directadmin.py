"""Backups of DirectAdmin, and archives packed by hand: what is in them is read, and what is not imported is named."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Final

import pytest

from svc_webhost.archives.crontab import typed
from svc_webhost.archives.model import Account, Format, Kind
from svc_webhost.archives.placing import placed_at
from svc_webhost.confined.protocol import FileError
from svc_webhost.confined.survey import survey
from tests.support import foreign_archives as foreign
from tests.support.foreign_archives import ADDON, DATABASE, MAIN, Packer

DEV: Final = f"dev.{MAIN}"


def read(content: bytes) -> Account:
    with tempfile.TemporaryFile() as archive:
        archive.write(content)
        archive.seek(0)
        return survey(archive)


def packed(files: Mapping[str, str], links: Mapping[str, str] | None = None) -> bytes:
    """The archive of the user ada, with these files."""
    archive = Packer()
    archive.file("backup/user.conf", f"username=ada\ndomain={MAIN}\n")
    archive.file(f"backup/{MAIN}/domain.conf", f"domain={MAIN}\n")
    for name, content in files.items():
        archive.file(name, content)
    for name, target in (links or {}).items():
        archive.link(name, target)
    return archive.gzipped()


def left(account: Account, kind: Kind) -> list[str]:
    return [each.name for each in account.left if each.kind is kind]


def test_sites_subdomains_and_pointers_are_read() -> None:
    account = read(foreign.directadmin(foreign.model()))

    assert account.format is Format.DIRECTADMIN
    assert {site.domain: site.root for site in account.sites} == {
        MAIN: f"domains/{MAIN}/public_html",
        DEV: f"domains/{MAIN}/public_html/dev",
        ADDON: f"domains/{ADDON}/public_html",
    }
    assert account.sites[0].aliases == sorted([f"www.{MAIN}", f"parked-{MAIN}", f"www.parked-{MAIN}"])
    assert account.sites[0].without == [f"domains/{MAIN}/public_html/dev"]


def test_databases_have_their_users_and_go_with_the_site_that_names_them() -> None:
    account = read(foreign.directadmin(foreign.model()))

    [database] = account.databases
    assert (database.name, database.dump, database.site, database.users) == (
        DATABASE, f"backup/{DATABASE}.sql", MAIN, ["ada_wp"],
    )  # fmt: skip
    assert account.sites[0].wordpress == f"domains/{MAIN}/public_html/wp-config.php"


def test_zones_certificates_and_tasks_are_read() -> None:
    account = read(foreign.directadmin(foreign.model(), certificate=("cert", "key")))

    assert [zone.name for zone in account.zones] == [MAIN]
    assert [(each.domain, each.files) for each in account.certificates] == [
        (MAIN, [f"backup/{MAIN}/domain.cert", f"backup/{MAIN}/domain.key"])
    ]
    assert [task.cron for task in account.tasks] == ["*/15 * * * *", "0 0 * * *", "0 3 * * *"]
    first = typed(account.tasks[0], account.sites)
    assert (first.domain, first.path, first.args) == (MAIN, "public/cron.php", ("--all",))


def test_what_is_not_imported_is_named() -> None:
    account = read(foreign.directadmin(foreign.model()))

    assert left(account, Kind.MAIL) == [
        f"forwarders of {ADDON}", f"sales@{MAIN}", f"forwarders of {MAIN}",
    ]  # fmt: skip
    assert set(left(account, Kind.LOGIN)) == {f"bob@{MAIN}", f"bob@{ADDON}", "ada"}
    assert set(left(account, Kind.FILES)) >= {"~/Maildir", f"domains/{MAIN}/stats", f"domains/{MAIN}/logs"}
    assert left(account, Kind.TASK) == [f"MAILTO=ada@{MAIN}"]


def test_the_home_within_the_archive_is_placed_with_the_first_site() -> None:
    account = read(foreign.directadmin(foreign.model(), home={"vendor/autoload.php": b"<?php"}))
    main, *others = account.sites

    orders = "backup/home.tar.gz/private-fixtures/orders.csv"
    assert placed_at(main, orders) == "private-fixtures/orders.csv"
    assert placed_at(main, f"domains/{MAIN}/vendor/autoload.php") == "vendor/autoload.php"
    assert [placed_at(site, orders) for site in others] == [None, None]
    for path in ("backup/home.tar.gz/Maildir/new/1", "backup/home.tar.gz/.bashrc", f"domains/{MAIN}/stats/index.html"):
        assert placed_at(main, path) is None


@pytest.mark.parametrize(
    ("files", "links"),
    [
        ({f"backup/{MAIN}/domain.cust_httpd": f"|?DOCROOT=`HOME`/domains/{MAIN}/public_html/public|\n"}, {}),
        ({}, {f"domains/{MAIN}/public_html": "laravel/public"}),
    ],
    ids=["a directive", "a link"],
)
def test_a_document_root_of_ones_own_is_found(files: dict[str, str], links: dict[str, str]) -> None:
    above = f"domains/{MAIN}/laravel" if links else f"domains/{MAIN}/public_html"
    application = {f"{above}/{name}": "x" for name in ("public/index.php", "vendor/autoload.php", ".env")}

    account = read(packed({**files, **application}, links))

    assert [placed_at(account.sites[0], name) for name in application] == [
        "public/index.php", "vendor/autoload.php", ".env",
    ]  # fmt: skip


def test_document_roots_of_subdomains_elsewhere_are_followed() -> None:
    override = f"blog=public_html=%2Fdomains%2F{DEV}%2Fpublic_html&php1_select=2\nother=php1_select=1\n"
    account = read(
        packed(
            {
                f"backup/{MAIN}/subdomain.list": "blog\nother\ngone\n",
                f"backup/{MAIN}/domain.subdomains.docroot.override": override,
                f"domains/{MAIN}/public_html/index.html": "x",
                f"domains/{MAIN}/public_html/other/index.html": "x",
                f"domains/{DEV}/public_html/index.html": "x",
            }
        )
    )

    assert {site.domain: site.root for site in account.sites} == {
        MAIN: f"domains/{MAIN}/public_html",
        f"blog.{MAIN}": f"domains/{DEV}/public_html",
        f"other.{MAIN}": f"domains/{MAIN}/public_html/other",
    }
    assert left(account, Kind.SITE) == [f"gone.{MAIN}"]


@pytest.mark.parametrize(
    "path", ["/etc", "/domains/../../etc/x", "/home/adam/domains/x/public_html", "/public_html/x/y", "/domains"]
)
def test_a_document_root_outside_of_the_domains_is_refused(path: str) -> None:
    account = read(
        packed(
            {
                f"backup/{MAIN}/subdomain.list": "x\n",
                f"backup/{MAIN}/domain.subdomains.docroot.override": f"x=public_html={path}\n",
                f"domains/{MAIN}/public_html/index.html": "x",
            }
        )
    )

    assert [site.domain for site in account.sites] == [MAIN]
    assert left(account, Kind.SITE) == [f"x.{MAIN}"]


def test_a_separate_private_html_and_a_folder_of_no_domain_are_named() -> None:
    account = read(
        packed(
            {
                f"domains/{MAIN}/public_html/index.html": "x",
                f"domains/{MAIN}/private_html/index.html": "secure",
                "domains/default/index.html": "x",
            }
        )
    )

    assert left(account, Kind.FILES) == [f"domains/{MAIN}/private_html", "domains/default"]
    assert placed_at(account.sites[0], f"domains/{MAIN}/private_html/index.html") is None


def test_names_that_are_no_domains_are_refused() -> None:
    account = read(
        packed(
            {
                f"domains/{MAIN}/public_html/index.html": "x",
                "backup/no domain/domain.conf": "domain=x\n",
                f"backup/{MAIN}/domain.pointers": "no domain=alias\n",
                f"backup/{MAIN}/subdomain.list": "-{}\n",
            }
        )
    )

    assert [site.domain for site in account.sites] == [MAIN]
    assert set(left(account, Kind.SITE)) == {"no domain", f"-{{}}.{MAIN}"}
    assert left(account, Kind.ALIAS) == ["no domain"]


@pytest.mark.parametrize("name", ["../../etc/cron.d/x", "/etc/passwd", "a/../../x"])
def test_a_home_within_the_archive_that_leads_out_refuses_all_of_it(name: str) -> None:
    rest = Packer()
    rest.file(name, "x")
    archive = Packer()
    archive.file("backup/user.conf", f"username=ada\ndomain={MAIN}\n")
    archive.file(f"backup/{MAIN}/domain.conf", f"domain={MAIN}\n")
    archive.file("backup/home.tar.gz", rest.gzipped())

    with pytest.raises(FileError):
        read(archive.gzipped())


def test_a_zone_for_another_name_gives_no_records_outside_of_it() -> None:
    account = read(
        packed(
            {
                f"domains/{MAIN}/public_html/index.html": "x",
                f"backup/{MAIN}/{MAIN}.db": "bank.example. 60 IN A 192.0.2.1\n@ 60 IN A 192.0.2.2\n",
                f"backup/{MAIN}/parked.example.db": "@ 60 IN A 192.0.2.3\n",
            }
        )
    )

    assert {zone.name: [record.name for record in zone.records] for zone in account.zones} == {
        MAIN: [MAIN], "parked.example": ["parked.example"],
    }  # fmt: skip


def test_an_archive_packed_by_hand_names_what_it_leaves() -> None:
    archive = Packer()
    for name in (
        *("one.example/index.php", "one.example/img/a.png", "two.example/public/index.html", "old/notes.txt"),
        *("etc/one.example.db", "crontab", "dump.sql", "backup/user.conf"),
    ):
        archive.file(name, "x")

    account = read(archive.gzipped())

    assert [site.domain for site in account.sites] == ["one.example"]
    assert left(account, Kind.SITE) == ["two.example/public"]
    assert left(account, Kind.DNS) == ["etc/one.example.db"]
    assert left(account, Kind.TASK) == ["crontab"]
    assert left(account, Kind.OTHER) == ["backup/user.conf"]
    assert left(account, Kind.FILES) == ["backup", "etc", "old"]
