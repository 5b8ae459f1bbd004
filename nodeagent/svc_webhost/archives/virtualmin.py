"""Virtualmin: the home of a virtual server, with its description in `.backup/`:

    public_html/, ..., .backup/DOMAIN_{virtualmin, web, dns, cron, ssl_cert, ssl_key, ssl_ca, mysql, mysql_NAME.gz}

A backup of several servers is an archive whose entries are such archives, `DOMAIN.tar.gz` each.
"""

from __future__ import annotations

import re
from typing import Final

from svc_webhost.archives.applications import describe
from svc_webhost.archives.crontab import read_into
from svc_webhost.archives.model import (
    Account,
    Format,
    FoundCertificate,
    FoundDatabase,
    FoundSite,
    Kind,
    Survey,
    domain_of,
)
from svc_webhost.archives.surroundings import followed, surround
from svc_webhost.archives.zonefile import read_zone

WANTED: Final = re.compile(r"(?:[^/]+/)?\.backup/[^/]+_(?:virtualmin|web|dns|cron)")
MARKED: Final = re.compile(
    r"(?:[^/]+/)?\.backup/[^/]+_(?:ssl_cert|ssl_key|ssl_ca|mail(?:_.*)?|(?:mysql|postgres)_[^/]+)"
)
_SERVER: Final = re.compile(r"((?:[^/]+/)?)\.backup/([^/]+)_virtualmin")
_OF_HOST: Final = frozenset(
    {"Maildir", "homes", "logs", "etc", "tmp", "awstats", "virtualmin-backup", "fcgi-bin", "domains"}
)


def read(survey: Survey) -> Account | None:
    servers = survey.matching(_SERVER)
    if not servers:
        return None
    account = Account(Format.VIRTUALMIN)
    for found in servers:
        _server(survey, account, found[1], found[2])
    surround(survey, account, _OF_HOST)
    for site in account.sites:
        describe(survey, site)
    for database in account.databases:
        database.site = next((s.domain for s in account.sites if s.database == database.name), database.site)
    return account


def _server(survey: Survey, account: Account, above: str, name: str) -> None:
    told = _settings(survey.text(f"{above}.backup/{name}_virtualmin"))
    domain = domain_of(told.get("dom", name))
    if domain is None:
        account.leave(Kind.SITE, name, "this is no domain name")
        return
    prefix = f"{above}.backup/{name}_"
    _database(survey, account, prefix, domain, told)
    if f"{prefix}dns" in survey.texts:
        account.zones.append(read_zone(domain, survey.text(f"{prefix}dns")))
    files = [f"{prefix}{each}" for each in ("ssl_cert", "ssl_key", "ssl_ca")]
    if files[0] in survey.marks and files[1] in survey.marks:
        account.certificates.append(FoundCertificate(domain, [each for each in files if each in survey.marks]))
    read_into(account, survey.text(f"{prefix}cron"))
    if any(path.startswith(f"{prefix}mail") for path in survey.marks):
        account.leave(Kind.MAIL, domain, "mailboxes are not imported: this server keeps no mail")
    # A sub-server's files are in `domains/NAME/` of its parent's home.
    own = f"{above}domains/{name}/" if survey.there(f"{above}domains/{name}") else above
    home = told.get("home", "")
    web = survey.text(f"{prefix}web")
    documents = re.search(r"^[ \t]*DocumentRoot[ \t]+\"?([^\s\"]+)", web, re.MULTILINE)
    root = told.get("public_html_dir") or "public_html"
    if documents is not None and home and documents[1].startswith(f"{home}/"):
        root = documents[1][len(home) + 1 :]
    folder = followed(survey, own.rstrip("/"), home, own + root)
    if not survey.there(folder):
        account.leave(Kind.SITE, domain, f"the archive has no folder {own}{root}")
        return
    aliases = {
        domain_of(word)
        for line in re.findall(r"^[ \t]*ServerAlias[ \t](.+)$", web, re.MULTILINE)
        for word in line.split()
    }
    names = sorted(
        each
        for each in aliases
        if each not in (None, domain)
        and not str(each).startswith(("mail.", "webmail.", "admin.", "autoconfig.", "autodiscover."))
    )
    site = FoundSite(
        domain, folder, [str(each) for each in names], old_home=home or None, home_in_archive=own.rstrip("/")
    )
    version = re.search(r"\b([5-9]\.[0-9])\b", told.get("php_fpm_version", "") or told.get("php_version", ""))
    site.php = None if version is None else version[1]
    account.sites.append(site)


def _database(survey: Survey, account: Account, prefix: str, domain: str, told: dict[str, str]) -> None:
    for kind, engine in (("mysql", "mariadb"), ("postgres", "postgresql")):
        for found in survey.matching(re.compile(re.escape(f"{prefix}{kind}_") + r"([^/]+?)(\.gz|\.bz2|\.zst)?")):
            if engine == "postgresql":
                reason = "it is a PostgreSQL dump of pg_dump's own format: import it as plain SQL"
                account.leave(Kind.DATABASE, found[1], reason)
                continue
            users = [told["mysql_user"]] if told.get("mysql_user") else [told["user"]] if told.get("user") else []
            account.databases.append(FoundDatabase(found[1], engine, found[0], domain, users))


def _settings(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}
