"""Plesk 9 to 18: an archive of one XML file that describes the subscription, and of the archives that it names:

    backup_info_DATE.xml, .../backup_user-data_DATE.tgz (or docroot), .../backup_sqldump_DATE.tgz, tgz or tzst

`cid` elements assign the archives to sites; without them, the folder of an archive does.
"""

from __future__ import annotations

import re
from typing import Any, Final
from xml.etree import ElementTree

from svc_webhost.archives.applications import describe
from svc_webhost.archives.model import (
    Account,
    Format,
    FoundDatabase,
    FoundRecord,
    FoundSite,
    FoundZone,
    Kind,
    Survey,
    domain_of,
)
from svc_webhost.archives.surroundings import followed, surround

# The pattern stops at the first match within a name. Trying every later one as well would take quadratic time.
WANTED: Final = re.compile(r"(?:.*/)?(?:(?:(?!info_)[^/])*info_[^/]*\.xml|dump\.xml)")
MARKED: Final = re.compile(r"(?:.*/)?(?:(?!sqldump)[^/])*sqldump[^/]*(?:/[^/]+)?")
_OF_HOST: Final = frozenset(
    {"anon_ftp", "bin", "cgi-bin", "conf", "dev", "error_docs", "etc", "lib", "lib64", "logs", "pd", "statistics"}
    | {"subdomains", "tmp", "usr", "var", "web_users"}
)
"""Folders of a subscription that Plesk makes: those of its own, and those of a login's chroot."""
_MOST_ELEMENTS: Final = 200_000


def read(survey: Survey) -> Account | None:
    described = [
        path for path in sorted(survey.texts, key=lambda path: (path.count("/"), path)) if WANTED.fullmatch(path)
    ]
    account = Account(Format.PLESK)
    for path in described:
        text = survey.texts[path]
        if b"<migration-dump" not in text[:4096]:
            continue
        if b"<!DOCTYPE" in text or b"<!ENTITY" in text:
            account.leave(Kind.OTHER, path, "it defines XML entities, which are not accepted")
            continue
        try:
            root = ElementTree.fromstring(text)  # noqa: S314 - without entities of its own; in the confined process
        except ElementTree.ParseError:
            account.leave(Kind.OTHER, path, "it is not XML")
            continue
        if sum(1 for _ in root.iter()) > _MOST_ELEMENTS:
            account.leave(Kind.OTHER, path, "it has more elements than a subscription has")
            continue
        folder = path.rpartition("/")[0]
        for domain in (*root.iter("domain"), *root.iter("site")):
            _domain(survey, account, folder, domain)
    if not account.sites and not account.left:
        return None
    surround(survey, account, _OF_HOST)
    for site in account.sites:
        describe(survey, site)
    for database in account.databases:
        database.site = next((s.domain for s in account.sites if s.database == database.name), database.site)
    return account


def _domain(survey: Survey, account: Account, folder: str, element: ElementTree.Element) -> None:
    name = domain_of(element.get("name", ""))
    if name is None or any(site.domain == name for site in account.sites):
        return
    hosting = element.find("phosting")
    if hosting is None:
        account.leave(Kind.SITE, name, "it had no hosting on the old host")
    else:
        _site(survey, account, folder, name, element, hosting)
    for database in element.iter("database"):
        _database(survey, account, folder, name, database)
    for zone in element.iter("dns-zone"):
        _zone(account, name, zone)
    for certificate in element.iter("certificate"):
        reason = "certificates are encrypted in Plesk's XML: upload it, or have one issued"
        account.leave(Kind.CERTIFICATE, certificate.get("name", name), reason)
    for user in element.iter("mailuser"):
        reason = "mailboxes are not imported: this server keeps no mail"
        account.leave(Kind.MAIL, f"{user.get('name', '')}@{name}", reason)
    for login in element.iter("ftpuser"):
        reason = "FTP passwords are not imported: add an SFTP login to the site"
        account.leave(Kind.LOGIN, login.get("name", ""), reason)


def _site(
    survey: Survey,
    account: Account,
    folder: str,
    name: str,
    element: ElementTree.Element,
    hosting: ElementTree.Element,
) -> None:
    documents = hosting.get("www-root") or (hosting.findtext("preferences/www-root") or "httpdocs")
    documents = documents.strip("/")
    root = home = None
    for kind in ("docroot", "user-data"):
        archive = _content(survey, folder, hosting, kind)
        if archive is not None:
            root, home = (archive, archive) if kind == "docroot" else (f"{archive}/{documents}", archive)
            break
    if root is None:  # A site of a subscription: its content is in the subscription's archive.
        for site in account.sites:
            if survey.there(f"{site.home_in_archive}/{documents}") and documents != "httpdocs":
                root, home = f"{site.home_in_archive}/{documents}", site.home_in_archive
    if root is not None and home is not None:
        root = followed(survey, home, f"/var/www/vhosts/{name}", root)
    if root is None or not survey.there(root):
        account.leave(Kind.SITE, name, "the archive has no files of it")
        return
    aliases = {f"www.{name}"} | {
        alias for each in element.iter("domain-alias") if (alias := domain_of(each.get("name", ""))) is not None
    }
    handler = "".join(hosting.itertext())[:0] + str(hosting.get("php_handler_id", ""))
    for each in hosting.iter("php"):
        handler += f" {each.get('php-handler-id', '')} {each.get('php-version', '')}"
    version = re.search(r"([5-9])\.?([0-9])\b", handler)
    site = FoundSite(
        name,
        root,
        sorted(aliases),
        php=None if version is None else f"{version[1]}.{version[2]}",
        old_home=f"/var/www/vhosts/{name}",
        home_in_archive=home or "",
    )
    account.sites.append(site)


def _content(survey: Survey, folder: str, element: ElementTree.Element, kind: str) -> str | None:
    """The archive that a `cid` names, if it exists."""
    for cid in element.iter("cid"):
        if cid.get("type") != kind:
            continue
        path = (cid.get("path") or "").strip("/")
        for file in cid.iter("content-file"):
            name = "/".join(each for each in (folder, path, (file.text or "").strip().lstrip("/")) if each)
            found = next(
                (each for each in (name, f"{folder}/{(file.text or '').strip()}".lstrip("/")) if survey.there(each)),
                None,
            )
            if found is not None:
                return found
    return None


def _database(survey: Survey, account: Account, folder: str, domain: str, element: ElementTree.Element) -> None:
    name = element.get("name", "")
    archive = _content(survey, folder, element, "sqldump")
    inside = sorted(path for path in survey.marks if archive is not None and path.startswith(f"{archive}/"))
    if any(each.name == name for each in account.databases):
        return
    if not inside or element.get("type") not in ("mysql", "postgresql"):
        account.leave(Kind.DATABASE, name, "the archive has no dump of it that can be read")
        return
    if element.get("type") == "postgresql":
        account.leave(Kind.DATABASE, name, "it is a PostgreSQL dump of pg_dump's own format: import it as plain SQL")
        return
    users = [user.get("name", "") for user in element.iter("dbuser")]
    account.databases.append(FoundDatabase(name, "mariadb", inside[0], domain, [user for user in users if user]))


def _zone(account: Account, name: str, element: ElementTree.Element) -> None:
    zone = FoundZone(name)
    for record in element.iter("dnsrec"):
        kind, value = record.get("type", "").upper(), (record.get("dst") or "").strip()
        owner = (record.get("src") or "").strip().rstrip(".").lower() or name
        if owner != name and not owner.endswith(f".{name}"):
            owner = f"{owner}.{name}"
        target = value.rstrip(".").lower()
        data: dict[str, Any] | None = {
            "A": {"address": value},
            "AAAA": {"address": value},
            "CNAME": {"target": target},
            "TXT": {"text": value},
        }.get(kind)
        if kind == "MX" and (record.get("opt") or "").isdigit():
            data = {"preference": int(record.get("opt") or "0"), "exchange": target}
        if kind == "NS" and owner == name:
            zone.left.append((f"{owner} NS", "this server writes its own"))
        elif data is None:
            zone.left.append((f"{owner} {kind}", "records of this type are not read from Plesk's XML"))
        else:
            zone.records.append(FoundRecord(owner, 14_400, kind, {"type": kind, **data}))
    account.zones.append(zone)
