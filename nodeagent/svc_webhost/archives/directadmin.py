"""DirectAdmin: `user.CREATOR.USER.tar.gz` or `.tar.zst` of its backups, and the older `backup-DATE.tar.gz`:

    backup/user.conf, crontab.conf, NAME.sql and NAME.conf        the account, its tasks, databases and their users
    backup/DOMAIN/{domain.conf, subdomain.list, domain.pointers, domain.subdomains.docroot.override}
    backup/DOMAIN/{DOMAIN.db, domain.cert, domain.key, domain.cacert, ftp.passwd, email/}
    backup/home.tar.zst or .gz                                    the home without domains/ and mail
    domains/DOMAIN/{public_html, private_html, stats, logs, ...}  the home's folder of the domain
    imap/DOMAIN/MAILBOX/                                          mail

Sources: docs.directadmin.com (backups, custom document roots), DirectAdmin's own converter `cpanel_to_da.sh`, the
listing of an archive of DirectAdmin 1.709 in shukiv/gniza (internal/layout/dabackup/testdata), and
migration-directadmin.pl in virtualmin/virtualmin-gpl.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import parse_qs, unquote

from svc_webhost.archives.applications import describe
from svc_webhost.archives.crontab import read_into
from svc_webhost.archives.model import (
    MOST_ITEMS,
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

WANTED: Final = re.compile(
    r"backup/(?:user\.conf|crontab\.conf|[^/]+\.conf|[^/]+/(?:domain\.(?:conf|pointers|subdomains\.docroot\.override"
    r"|cust_httpd)|subdomain\.list|ftp\.passwd|[^/]+\.db|email/(?:passwd|aliases|autoresponder\.conf|vacation\.conf)))"
)
MARKED: Final = re.compile(r"backup/(?:[^/]+\.sql(?:\.gz|\.zst)?|[^/]+/domain\.(?:cert|key|cacert)|\.shadow)")
HOME: Final = re.compile(r"backup/home\.tar(?:\.gz|\.zst|\.bz2)?")
"""An archive within the archive."""
_USER: Final = "backup/user.conf"
_DOMAIN: Final = re.compile(r"backup/([^/]+)/domain\.conf")
_DUMP: Final = re.compile(r"backup/([^/]+)\.sql(?:\.gz|\.zst)?")
_OF_HOST: Final = frozenset(
    {"stats", "logs", "awstats", "public_ftp", "private_html", "imap", "Maildir", "backups", "user_backups"}
    | {"admin_backups", "domains", "tmp", "mail"}
)
_ROOT: Final = re.compile(r"^\|\?DOCROOT=(?:`HOME`|/home/[^/\s|]+)(/[^\s|]+)\|", re.MULTILINE)
_NUMBERED: Final = re.compile(r"^[0-9]{1,6}=(?=[0-9*@])", re.MULTILINE)
_MOST_DOMAINS: Final = 200
_NO_MAIL: Final = "this server keeps no mail"


def read(survey: Survey) -> Account | None:
    domains = [found[1] for found in survey.matching(_DOMAIN)]
    if _USER not in survey.texts or not (domains or survey.there("domains")):
        return None
    account = Account(Format.DIRECTADMIN)
    user = dict(_pairs(survey.text(_USER)))
    first = user.get("domain", "")
    domains.sort(key=lambda name: (name != first, name))
    if len(domains) > _MOST_DOMAINS:
        account.leave(
            Kind.SITE, f"{len(domains) - _MOST_DOMAINS} more", f"at most {_MOST_DOMAINS} domains are imported"
        )
    for name in domains[:_MOST_DOMAINS]:
        _domain(survey, account, user.get("username", ""), name)
    _zones(survey, account)
    _without_domains(survey, account, frozenset(domains))
    surround(survey, account, _OF_HOST)
    _home(survey, account)
    for site in account.sites:
        describe(survey, site)
    _databases(survey, account)
    _tasks(survey, account)
    _mail(survey, account)
    if "backup/.shadow" in survey.marks:
        account.leave(Kind.LOGIN, user.get("username", ""), "the account's password is not imported")
    return account


def _domain(survey: Survey, account: Account, user: str, name: str) -> None:
    domain = domain_of(name)
    if domain is None:
        account.leave(Kind.SITE, name, "this is no domain name")
        return
    about = f"backup/{name}/"
    told = dict(_pairs(survey.text(f"{about}domain.conf")))
    custom = _ROOT.findall(survey.text(f"{about}domain.cust_httpd"))
    path = told.get("documentroot") or told.get("public_html") or (custom[0] if len(custom) == 1 else "")
    names = [f"www.{domain}"]
    for pointer, kind in _pairs(survey.text(f"{about}domain.pointers")):
        alias = domain_of(pointer)
        if alias is None:
            account.leave(Kind.ALIAS, pointer, "this is no domain name")
            continue
        names += [alias, f"www.{alias}"]
        if not kind.startswith("alias"):
            reason = f"visitors were sent on to {domain}: it becomes a name of the site, have the site redirect it"
            account.leave(Kind.OTHER, f"redirect of {alias}", reason)
    if told.get("suspended", "no").lower() in ("yes", "on"):
        account.leave(Kind.OTHER, f"suspension of {domain}", "it was suspended on the old host, and is not here")
    _site(survey, account, user, domain, path or f"/domains/{name}/public_html", names)
    _subdomains(survey, account, user, name, domain)
    _other_parts(survey, account, name, domain)


def _subdomains(survey: Survey, account: Account, user: str, name: str, domain: str) -> None:
    about = f"backup/{name}/"
    roots = dict(_pairs(survey.text(f"{about}domain.subdomains.docroot.override")))
    for label in dict.fromkeys(survey.text(f"{about}subdomain.list").split()):
        own = domain_of(f"{label}.{domain}")
        if own is None:
            account.leave(Kind.SITE, f"{label}.{domain}", "this is no domain name")
            continue
        root = _values(roots.get(label, "")).get("public_html") or f"/domains/{name}/public_html/{label}"
        _site(survey, account, user, own, root, [f"www.{own}"])


def _site(survey: Survey, account: Account, user: str, domain: str, path: str, aliases: list[str]) -> None:
    """`path` is relative to the home, or starts with it."""
    if len(account.sites) == MOST_ITEMS or any(site.domain == domain for site in account.sites):
        account.leave(Kind.SITE, domain, "the archive has another site of this name, or too many")
        return
    parts = [part for part in path.removeprefix(f"/home/{user}").split("/") if part]
    if len(parts) < 3 or parts[0] != "domains" or ".." in parts:
        account.leave(Kind.SITE, domain, f"its document root {path[:100]} is outside of domains/")
        return
    home = "/".join(parts[:2])
    root = followed(survey, home, f"/home/{user}/{home}", "/".join(parts))
    if not survey.there(root):
        account.leave(Kind.SITE, domain, f"the archive has no folder {root}")
        return
    account.sites.append(
        FoundSite(domain, root, sorted(set(aliases)), old_home=f"/home/{user}/{home}", home_in_archive=home)
    )


def _other_parts(survey: Survey, account: Account, name: str, domain: str) -> None:
    """Certificate and FTP logins of a domain, and those of its folders that are not imported."""
    about = f"backup/{name}/"
    files = [f"{about}domain.{end}" for end in ("cert", "key", "cacert")]
    if files[0] in survey.marks and files[1] in survey.marks:
        account.certificates.append(FoundCertificate(domain, [each for each in files if each in survey.marks]))
    for login, value in _pairs(survey.text(f"{about}ftp.passwd")):
        if _values(value).get("type") != "system":
            account.leave(Kind.LOGIN, login, "FTP passwords are not imported: add an SFTP login to the site")
    for folder in survey.below(f"domains/{name}"):
        path = f"domains/{name}/{folder}"
        if folder == "private_html":
            reason = "visitors by HTTPS were shown these files: this server shows those of public_html to everybody"
            account.leave(Kind.FILES, path, reason)
        elif folder in _OF_HOST:
            account.leave(Kind.FILES, path, "it is the old host's own")


def _zones(survey: Survey, account: Account) -> None:
    """Zones of domains, and of their further names."""
    known = set[str]()
    for found in survey.matching(re.compile(r"backup/[^/]+/([^/]+)\.db")):
        zone = domain_of(found[1])
        if zone is not None and zone not in known:
            known.add(zone)
            account.zones.append(read_zone(zone, survey.text(found[0])))


def _without_domains(survey: Survey, account: Account, known: frozenset[str]) -> None:
    for name in survey.below("domains"):
        if name not in known and not any(site.home_in_archive == f"domains/{name}" for site in account.sites):
            account.leave(Kind.FILES, f"domains/{name}", "the archive does not describe a domain of this name")


def _home(survey: Survey, account: Account) -> None:
    """Give the folders of the home that lie outside of domains/ to the first site."""
    archive = next((name for name in survey.below("backup") if HOME.fullmatch(f"backup/{name}")), None)
    site = account.sites[0] if account.sites else None
    if archive is None:
        return
    for name in survey.below(f"backup/{archive}"):
        folder = f"backup/{archive}/{name}"
        if name in _OF_HOST:
            account.leave(Kind.FILES, f"~/{name}", "it is the old host's own")
        elif name.startswith("."):
            continue
        elif site is None or survey.there(f"{site.home_in_archive}/{name}"):
            reason = "a folder of this name lies next to the document root already" if site else "it belongs to no site"
            account.leave(Kind.FILES, f"~/{name}", reason)
        else:
            site.home.append(folder)


def _databases(survey: Survey, account: Account) -> None:
    first = account.sites[0].domain if account.sites else None
    named = {site.database: site.domain for site in reversed(account.sites) if site.database is not None}
    for dump in survey.matching(_DUMP):
        database = FoundDatabase(dump[1], "mariadb", dump[0], named.get(dump[1], first))
        for user, value in _pairs(survey.text(f"backup/{dump[1]}.conf")):
            told = _values(value)
            if "passwd" in told:
                rights = [name.removesuffix("_priv").replace("_", " ") for name in told if name.endswith("_priv")]
                granted = [right for right in rights if told[f"{right.replace(' ', '_')}_priv"] == "Y"]
                database.add_user(user, granted or None)
        account.databases.append(database)


def _tasks(survey: Survey, account: Account) -> None:
    read_into(account, _NUMBERED.sub("", survey.text("backup/crontab.conf")))


def _mail(survey: Survey, account: Account) -> None:
    domains = {found[1] for found in survey.matching(re.compile(r"backup/([^/]+)/email/[^/]+"))}
    for domain in sorted({*domains, *survey.below("imap")})[:_MOST_DOMAINS]:
        about = f"backup/{domain}/email/"
        boxes = {line.split(":", 1)[0].strip() for line in survey.text(f"{about}passwd").splitlines()}
        for box in sorted({*boxes, *survey.below(f"imap/{domain}")} - {""}):
            account.leave(Kind.MAIL, f"{box}@{domain}", f"mailboxes are not imported: {_NO_MAIL}")
        aliases = [line.split(":", 1) for line in survey.text(f"{about}aliases").splitlines() if ":" in line]
        # DirectAdmin writes a line that sends the account's own mail to itself.
        if any(name.strip() != target.strip() for name, target in aliases):
            account.leave(Kind.MAIL, f"forwarders of {domain}", f"forwarders are not imported: {_NO_MAIL}")
        if any(survey.text(f"{about}{name}").strip() for name in ("autoresponder.conf", "vacation.conf")):
            account.leave(Kind.MAIL, f"autoresponders of {domain}", f"autoresponders are not imported: {_NO_MAIL}")


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip() and not name.startswith("#"):
            yield unquote(name.strip()), value.strip()


def _values(text: str) -> dict[str, str]:
    """The values of `a=1&b=%2F`."""
    try:
        return {name: values[-1] for name, values in parse_qs(text, max_num_fields=200).items()}
    except ValueError:
        return {}
