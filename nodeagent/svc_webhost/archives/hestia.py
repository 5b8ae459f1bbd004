"""Hestia (and Vesta): `USER.DATE.tar`, in which every site's files are an archive of their own:

web/DOMAIN/{hestia/web.conf, domain_data.tar.gz or .zst, conf/DOMAIN.{crt,key,ca,pem}}, dns/DOMAIN/conf/DOMAIN.db,
db/NAME/{hestia/db.conf, NAME.mysql.sql.gz or .zst}, cron/cron.conf, mail/DOMAIN/, user_dir/NAME.tar.gz
"""

from __future__ import annotations

import re
from typing import Final

from svc_webhost.archives.applications import describe
from svc_webhost.archives.model import (
    Account,
    Format,
    FoundCertificate,
    FoundDatabase,
    FoundSite,
    FoundTask,
    Kind,
    Survey,
    domain_of,
)
from svc_webhost.archives.surroundings import followed, surround
from svc_webhost.archives.zonefile import read_zone

WANTED: Final = re.compile(
    r"(?:web/[^/]+/(?:hestia|vesta)/web\.conf|dns/[^/]+/conf/[^/]+\.db|db/[^/]+/(?:hestia|vesta)/db\.conf"
    r"|cron/cron\.conf)"
)
MARKED: Final = re.compile(
    r"(?:web/[^/]+/conf/[^/]+\.(?:crt|key|ca|pem)|db/[^/]+/[^/]+\.sql(?:\.gz|\.zst)?|mail/[^/]+/(?:hestia|vesta)/.*)"
)
_SITE: Final = re.compile(r"web/([^/]+)/(?:hestia|vesta)/web\.conf")
_OF_HOST: Final = ("logs", "stats", "document_errors", "cgi-bin", "public_shtml")
_PAIR: Final = re.compile(r"(?<![A-Z_0-9])([A-Z_0-9]+)='([^']*)'")


def read(survey: Survey) -> Account | None:
    sites = survey.matching(_SITE)
    if not sites and not any(WANTED.fullmatch(path) for path in survey.texts):
        return None
    account = Account(Format.HESTIA)
    for found in sites:
        _site(survey, account, found[1], _pairs(survey.text(found[0])))
    surround(survey, account, _OF_HOST)
    for site in account.sites:
        describe(survey, site)
    for found in survey.matching(re.compile(r"db/([^/]+)/(?:hestia|vesta)/db\.conf")):
        _database(survey, account, found[1], _pairs(survey.text(found[0])))
    for found in survey.matching(re.compile(r"dns/([^/]+)/conf/[^/]+\.db")):
        name = domain_of(found[1])
        if name is not None:
            account.zones.append(read_zone(name, survey.text(found[0])))
    for line in survey.text("cron/cron.conf").splitlines():
        _task(account, _pairs(line))
    for name in survey.below("mail"):
        account.leave(Kind.MAIL, name, "mailboxes are not imported: this server keeps no mail")
    for name in survey.below("user_dir"):
        account.leave(Kind.FILES, f"user_dir/{name}", "it belongs to no site: unpack it yourself where it is needed")
    return account


def _site(survey: Survey, account: Account, name: str, told: dict[str, str]) -> None:
    domain = domain_of(name)
    data = next((each for end in ("gz", "zst") if survey.there(each := f"web/{name}/domain_data.tar.{end}")), None)
    if domain is None or data is None:
        account.leave(Kind.SITE, name, "the archive has no files of it" if domain else "this is no domain name")
        return
    aliases = {domain_of(each) for each in told.get("ALIAS", "").split(",")} - {None, domain}
    custom = f"{told.get('CUSTOM_DOCROOT', '').strip('/')}/".partition("/public_html/")[2].strip("/")
    root = f"{data}/public_html/{custom}".rstrip("/")
    old_home = f"/home/{told['USER']}/web/{name}" if told.get("USER") else ""
    php = re.fullmatch(r"PHP-([0-9])_([0-9])", told.get("BACKEND", ""))
    site = FoundSite(
        domain,
        followed(survey, data, old_home, root),
        sorted(str(each) for each in aliases),
        php=None if php is None else f"{php[1]}.{php[2]}",
        old_home=old_home or None,
        home_in_archive=data,
    )
    account.sites.append(site)
    files = [f"web/{name}/conf/{name}.{end}" for end in ("crt", "key", "ca")]
    if files[0] in survey.marks:
        account.certificates.append(FoundCertificate(domain, [each for each in files if each in survey.marks]))


def _database(survey: Survey, account: Account, name: str, told: dict[str, str]) -> None:
    kind = told.get("TYPE", "mysql")
    dump = next(
        (each for end in ("", ".gz", ".zst") if (each := f"db/{name}/{name}.{kind}.sql{end}") in survey.marks), ""
    )
    if not dump:
        account.leave(Kind.DATABASE, name, "the archive has no dump of it")
        return
    engine = "postgresql" if kind == "pgsql" else "mariadb"
    site = next((site.domain for site in account.sites if site.database == name), None)
    first = account.sites[0].domain if account.sites else None
    users = [told["DBUSER"]] if told.get("DBUSER") else []
    account.databases.append(FoundDatabase(name, engine, dump, site or first, users))


def _task(account: Account, told: dict[str, str]) -> None:
    if not told.get("CMD"):
        return
    command = told["CMD"].replace("%quote%", "'").replace("%dots%", ":")
    if told.get("SUSPENDED") == "yes":
        account.leave(Kind.TASK, command, "it was suspended on the old host")
        return
    fields = " ".join(told.get(name, "") for name in ("MIN", "HOUR", "DAY", "MONTH", "WDAY"))
    account.tasks.append(FoundTask(fields, command))


def _pairs(line: str) -> dict[str, str]:
    return dict(_PAIR.findall(line))
