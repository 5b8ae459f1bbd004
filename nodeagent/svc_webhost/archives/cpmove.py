"""cPanel: `cpmove-USER.tar.gz` of its transfer, and `backup-DATE_USER.tar.gz` of a full backup. One layout:

cp/USER, userdata/{main,DOMAIN}, homedir/ or homedir.tar, mysql/NAME.sql, dnszones/DOMAIN.db,
apache_tls/DOMAIN or sslcerts/ and sslkeys/, cron/USER, psql/, va/, vf/, proftpdpasswd
"""

from __future__ import annotations

import re
from typing import Any, Final

from svc_webhost.archives.applications import describe
from svc_webhost.archives.crontab import read_into
from svc_webhost.archives.model import (
    Account,
    Format,
    FoundCertificate,
    FoundDatabase,
    FoundRecord,
    FoundSite,
    FoundZone,
    Kind,
    Survey,
    domain_of,
)
from svc_webhost.archives.placing import below
from svc_webhost.archives.surroundings import followed, surround
from svc_webhost.archives.zonefile import read_zone

WANTED: Final = re.compile(
    r"(?:[^/]+/)?(?:cp/[^/]+|userdata/[^/]+|dnszones/[^/]+\.db|cron/[^/]+|proftpdpasswd|addons|pds|sds2?|mysql\.sql)"
)
"""Files whose content describes the account."""
MARKED: Final = re.compile(
    r"(?:[^/]+/)?(?:mysql/[^/]+\.(?:sql|create)(?:\.gz)?|psql/[^/]+|apache_tls/[^/]+|ssl(?:certs|keys|cabundles?)/[^/]+"
    r"|v[af]/[^/]+)"
)
_USER: Final = re.compile(r"((?:[^/]+/)?)cp/([^/]+)")
_OF_HOST: Final = frozenset(
    {"mail", "etc", "logs", "tmp", "ssl", "access-logs", "public_ftp", "cpanel_ftp", "perl5", "lscache", "www"}
)
"""Folders of a home that belong to the old host's control panel."""
_SERVICE: Final = re.compile(
    r"(cpanel|whm|webdisk|cpcalendars|cpcontacts|_(?:cal|card)davs?\._tcp|_cpanel-dcv-test-record)\.(.+)"
)
"""Names of cPanel's own services. Those of mail (webmail, autodiscover, autoconfig) stay with the mailboxes."""
_DAV_PORTS: Final = (2079, 2080)


def read(survey: Survey) -> Account | None:
    found = next(iter(survey.matching(_USER)), None)
    if found is None:
        return None
    survey, user = survey.beneath(found[1]), found[2]
    account = Account(Format.CPANEL)
    home = "homedir.tar" if survey.there("homedir.tar") else "homedir"
    main = _yaml(survey.text("userdata/main"))
    settings = _settings(survey.text(f"cp/{user}"))
    _sites(survey, account, user, home, main, settings)
    _databases(survey, account, user)
    for zone in survey.matching(re.compile(r"dnszones/([^/]+)\.db")):
        name = domain_of(zone[1])
        if name is not None:
            account.zones.append(_without_services(read_zone(name, survey.text(zone[0])), account.sites))
    _certificates(survey, account)
    for crontab in survey.matching(re.compile(r"cron/[^/]+")):
        read_into(account, survey.text(crontab[0]))
    _left(survey, account, home)
    return _prefixed(account, found[1])


def _sites(
    survey: Survey, account: Account, user: str, home: str, main: dict[str, Any], settings: dict[str, str]
) -> None:
    domain = domain_of(main.get("main_domain") or settings.get("DNS") or "")
    if domain is None:
        account.leave(Kind.SITE, user, "the archive does not say the account's domain")
        return
    addons = main.get("addon_domains")
    addons = addons if isinstance(addons, dict) else {}
    internal = set(map(str, addons.values()))
    parked = [str(each) for each in main.get("parked_domains") or [] if isinstance(main.get("parked_domains"), list)]
    listed = main.get("sub_domains") if isinstance(main.get("sub_domains"), list) else []
    subs = [str(each) for each in listed or [] if str(each) not in internal]
    wanted = [(domain, domain, parked), *((str(name), str(sub), []) for name, sub in addons.items())]
    wanted += [(sub, sub, []) for sub in subs]
    for name, described, more in wanted:
        own = domain_of(name)
        if own is None:
            account.leave(Kind.SITE, name, "this is no domain name")
            continue
        told = _yaml(survey.text(f"userdata/{described}"))
        old_home = str(told.get("homedir") or settings.get("HOMEDIR") or f"/home/{user}")
        folder = str(told.get("documentroot") or f"{old_home}/public_html")
        inside = below(old_home.rstrip("/"), folder.rstrip("/"))
        root = folder.strip("/") if inside is None else inside
        aliases = [*str(told.get("serveralias") or f"www.{own}").split(), *more]
        names = {
            alias
            for each in aliases
            # cPanel gives each addon domain a subdomain of the main domain. This subdomain is internal, and not an
            # address of its own.
            if (alias := domain_of(each)) not in (None, own)
            and not str(each).startswith("*")
            and not (described != name and (alias == described or str(alias).endswith(f".{described}")))
        }
        account.sites.append(
            FoundSite(
                own,
                followed(survey, home, old_home, f"{home}/{root}".rstrip("/")),
                sorted(str(each) for each in names if not str(each).startswith("mail.")),
                php=_php(str(told.get("phpversion") or "")),
                old_home=old_home,
                home_in_archive=home,
            )
        )
    surround(survey, account, _OF_HOST)
    for site in account.sites:
        if site.root == home:
            # The home itself is the document root: what cPanel keeps there is no part of the site.
            site.without += [folder for name in sorted(_OF_HOST) if survey.there(folder := f"{home}/{name}")]
    for site in account.sites:
        describe(survey, site)


def _without_services(zone: FoundZone, sites: list[FoundSite]) -> FoundZone:
    """cPanel adds names of its own services to each domain and subdomain: these are left out, and mentioned once. Names
    of a site, and names that another record refers to, stay."""
    needed = {record.data.get("target") or record.data.get("exchange") for record in zone.records if not _own(record)}
    needed |= {name for site in sites for name in (site.domain, *site.aliases)}
    records, services = [], set()
    for record in zone.records:
        found = _SERVICE.fullmatch(record.name)
        if found is not None and _own(record) and record.name not in needed:
            services.add(found[1])
        else:
            records.append(record)
    if services:
        zone.records = records
        names = f"{', '.join(sorted(services))} of {zone.name}"
        zone.left.append((names, "services of cPanel, which this server does not have"))
    return zone


def _own(record: FoundRecord) -> bool:
    """Whether cPanel has added the name: a customer may have pointed a name like this to another server."""
    found = _SERVICE.fullmatch(record.name)
    if found is None:
        return False
    match record.type:
        case "A" | "AAAA":
            return not found[1].startswith("_")
        case "CNAME":
            return str(record.data["target"]) == found[2]
        case "SRV":
            return record.data["port"] in _DAV_PORTS
        case "TXT":
            return str(record.data["text"]).startswith(("path=", "_cpanel-dcv-test-record="))
    return False


def _databases(survey: Survey, account: Account, user: str) -> None:
    users = _grants(survey.text("mysql.sql"))
    for dump in survey.matching(re.compile(r"mysql/([^/]+)\.sql(?:\.gz)?")):
        site = next((site.domain for site in account.sites if site.database == dump[1]), None)
        first = account.sites[0].domain if account.sites else None
        database = FoundDatabase(dump[1], "mariadb", dump[0], site or first)
        for name, (rights, hosts) in users.get(dump[1], {}).items():
            database.add_user(name, rights, hosts)
        account.databases.append(database)
    for dump in survey.matching(re.compile(r"psql/([^/]+?)\.(?:tar|sql)(?:\.gz)?")):
        account.leave(Kind.DATABASE, dump[1], "it is a PostgreSQL dump of pg_dump's own format: import it as plain SQL")


def _grants(text: str) -> dict[str, dict[str, tuple[set[str], set[str]]]]:
    """The users of each database, with their rights in the database, and the hosts from which they have these
    rights."""
    users: dict[str, dict[str, tuple[set[str], set[str]]]] = {}
    for line in text.splitlines():
        rights, _, granted = line.removeprefix("GRANT ").rpartition(" ON ") if line.startswith("GRANT ") else ("",) * 3
        found = re.match(r"[`']?([^`'.]+)[`']?\.\S+ TO [`']([^`']+)[`']@(?:[`']([^`']+)[`'])?", granted)
        if found is not None and found[1] != "*":
            there = users.setdefault(found[1].replace("\\_", "_"), {}).setdefault(found[2], (set(), set()))
            there[0].update(right.strip() for right in rights.split(","))
            there[1].add(found[3] or "localhost")
    return users


def _certificates(survey: Survey, account: Account) -> None:
    names = {site.domain for site in account.sites}
    for found in survey.matching(re.compile(r"apache_tls/([^/]+)")):
        if found[1] in names:
            account.certificates.append(FoundCertificate(found[1], [found[0]]))
    for found in survey.matching(re.compile(r"sslcerts/([^/]+)\.crt")):
        if found[1] in names and not any(each.domain == found[1] for each in account.certificates):
            parts = [found[0], f"sslkeys/{found[1]}.key", f"sslcabundles/{found[1]}.cabundle"]
            account.certificates.append(FoundCertificate(found[1], [each for each in parts if each in survey.marks]))


def _left(survey: Survey, account: Account, home: str) -> None:
    accounts = survey.below(f"{home}/mail")
    boxes = {name for name in accounts if "." in name and not name.startswith(".")}
    for name in sorted(boxes):
        account.leave(Kind.MAIL, name, "mailboxes are not imported: this server keeps no mail")
    if survey.there(f"{home}/mail") and not boxes:
        account.leave(Kind.MAIL, "mail", "mailboxes are not imported: this server keeps no mail")
    # A domain has a file of forwarders and one of filters.
    for name in sorted({found[1] for found in survey.matching(re.compile(r"v[af]/([^/]+)"))}):
        account.leave(Kind.MAIL, f"forwarders of {name}", "forwarders are not imported: this server keeps no mail")
    for line in survey.text("proftpdpasswd").splitlines():
        name = line.split(":", 1)[0].strip()
        if name:
            account.leave(Kind.LOGIN, name, "FTP passwords are not imported: add an SFTP login to the site")
    for name in survey.below(home):
        if name in _OF_HOST - {"mail", "www"}:
            account.leave(Kind.FILES, f"~/{name}", "it is the old host's own")


def _prefixed(account: Account, prefix: str) -> Account:
    """Paths as in the archive, where cPanel adds a folder at the top."""
    for site in account.sites:
        site.root = prefix + site.root
        site.home_in_archive = prefix + site.home_in_archive
        site.without = [prefix + each for each in site.without]
        site.home = [prefix + each for each in site.home]
        site.application = None if site.application is None else prefix + site.application
        site.wordpress = None if site.wordpress is None else prefix + site.wordpress
        site.configuration = None if site.configuration is None else prefix + site.configuration
        site.applications = [prefix + each for each in site.applications]
    for database in account.databases:
        database.dump = prefix + database.dump
    for certificate in account.certificates:
        certificate.files = [prefix + each for each in certificate.files]
    return account


def _php(text: str) -> str | None:
    found = re.fullmatch(r"(?:ea|alt)-php([0-9])([0-9])", text)
    return None if found is None else f"{found[1]}.{found[2]}"


def _settings(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _yaml(text: str) -> dict[str, Any]:
    """The part of YAML that cPanel writes: values, lists and maps of one level."""
    found: dict[str, Any] = {}
    key: str | None = None
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith(("#", "---")):
            continue
        stripped = line.strip()
        if stripped.startswith("- ") and key is not None:
            if not isinstance(found.get(key), list):
                found[key] = []
            found[key].append(_scalar(stripped[2:]))
        elif line[0].isspace() and key is not None:
            name, colon, value = stripped.partition(":")
            if colon:
                if not isinstance(found.get(key), dict):
                    found[key] = {}
                found[key][str(_scalar(name))] = _scalar(value)
        else:
            name, colon, value = stripped.partition(":")
            if colon:
                key = str(_scalar(name))
                found[key] = _scalar(value)
    return found


def _scalar(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return "" if text in ("{}", "[]", "~") else text
