"""The common model of all formats: sites, databases, zones, certificates, tasks, and what is left out with its reason.

Paths are those of the archive's entries; an archive within the archive counts as a folder of its name:
`web/a.example/domain_data.tar.gz/public_html/index.php`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, TypeVar

MOST_ITEMS: Final = 2000
"""The most items of each kind in an archive: no customer's account has more."""
DOMAIN: Final = re.compile(r"(?=.{3,253}\Z)[\w-]{1,63}(\.[\w-]{1,63})+", re.UNICODE)


class Format(StrEnum):
    CPANEL = "cpanel"
    PLESK = "plesk"
    DIRECTADMIN = "directadmin"
    HESTIA = "hestia"
    VIRTUALMIN = "virtualmin"
    TREE = "tree"
    SSH = "ssh"


class Kind(StrEnum):
    """The kind of an item of a plan."""

    SITE = "site"
    ALIAS = "alias"
    PHP = "php"
    FILES = "files"
    DATABASE = "database"
    DATABASE_USER = "database_user"
    CONFIGURATION = "configuration"
    PROTECTED_PATH = "protected_path"
    DNS = "dns"
    CERTIFICATE = "certificate"
    TASK = "task"
    MAIL = "mail"
    LOGIN = "login"
    OTHER = "other"


@dataclass
class FoundSite:
    """`root` is the folder of its document root; `without` are folders that belong to other sites. `home` are further
    folders and files that its programs may need, which are placed next to the document root. `application` is the
    folder above the document root, if all of it is the site's: its content is placed there too."""

    domain: str
    root: str
    aliases: list[str] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    home: list[str] = field(default_factory=list)
    application: str | None = None
    renamed: list[str] = field(default_factory=list)
    """Folders of the application that cannot have their own names here."""
    php: str | None = None
    extensions: list[str] = field(default_factory=list)
    """PHP extensions that the site's own files require."""
    command_line_php: str | None = None
    command_line_extensions: list[str] = field(default_factory=list)
    """PHP extensions of the old host's command line, which may use another PHP than its websites."""
    wordpress: str | None = None
    """The path of the site's wp-config.php."""
    applications: list[str] = field(default_factory=list)
    """Configuration files of other applications, which have to be changed by hand."""
    uploads: dict[str, str] = field(default_factory=dict)
    """Folders of uploads, as paths of the site's URL, each with the product that has them."""
    database: str | None = None
    """The database named in the site's wp-config.php, or else in `configuration`."""
    configuration: str | None = None
    """The path of the configuration of another application, in which its database is written."""
    files: int = 0
    size: int = 0
    old_home: str | None = None
    """The account's home on the other host, to which absolute links and tasks refer."""
    home_in_archive: str = ""


READING: Final = frozenset({"SELECT", "SHOW VIEW", "LOCK TABLES", "USAGE"})
_EVERYTHING: Final = frozenset({"ALL", "ALL PRIVILEGES"})
_WRITING: Final = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "ALTER", "INDEX"})
"""A user with these rights notices no difference to all rights."""
_HERE: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_MOST_HOSTS: Final = 20


@dataclass
class FoundDatabase:
    """`dump` is a file of SQL, plain or compressed. `site` is the domain that it goes with. Of its `users`, `readers`
    could only read; `rights` has what others could do that could not do everything, and `hosts` from where users could
    connect besides the old host itself."""

    name: str
    engine: str
    dump: str
    site: str | None = None
    users: list[str] = field(default_factory=list)
    readers: list[str] = field(default_factory=list)
    rights: dict[str, str] = field(default_factory=dict)
    hosts: dict[str, list[str]] = field(default_factory=dict)

    def add_user(self, name: str, rights: Iterable[str] | None, hosts: Iterable[str] = ()) -> None:
        """`rights`: as named in SQL; None if the archive does not say them, as if they were all."""
        if name not in self.users:
            self.users.append(name)
        granted = {" ".join(right.upper().split()) for right in rights or ()}
        if granted and granted <= READING:
            self.readers.append(name)
        elif granted and not granted & _EVERYTHING and not granted >= _WRITING:
            self.rights[name] = ", ".join(sorted(granted))[:200]
        if elsewhere := sorted({host for host in hosts if host not in _HERE}):
            self.hosts[name] = elsewhere[:_MOST_HOSTS]


@dataclass
class FoundRecord:
    name: str
    ttl: int
    type: str
    data: dict[str, Any]


@dataclass
class FoundZone:
    """`left` are records of types that this service does not support, with the reason."""

    name: str
    records: list[FoundRecord] = field(default_factory=list)
    left: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class FoundCertificate:
    """Files of the archive with its PEM blocks: the key is read during the import, and stored nowhere else."""

    domain: str
    files: list[str]


@dataclass
class FoundPasswords:
    """A folder of a site whose .htaccess file asks for a password. `path` is its URL path; `named`: the password file's
    path on the other host, and `file` in the archive, if it is there. `logins`: how many can be taken over; `left`:
    logins that cannot, and why. `problem`: why nothing can. Password hashes are read during the import, and stored only
    with the path."""

    site: str
    path: str
    named: str
    file: str | None
    logins: int = 0
    left: list[tuple[str, str]] = field(default_factory=list)
    problem: str | None = None


@dataclass
class FoundRules:
    """What a site's .htaccess files come to here, judged in the archive. `settings`: settings of the panel that replace
    lines, in words. `blocking`: the first lines that have no equivalent, of `blocks` such lines: they suspend the
    site."""

    site: str
    settings: list[str] = field(default_factory=list)
    blocking: list[str] = field(default_factory=list)
    blocks: int = 0


@dataclass
class FoundTask:
    """A line of a crontab: its five fields, and the command as it was."""

    cron: str
    command: str


@dataclass
class SkippedItem:
    """What is not imported, and why."""

    kind: Kind
    name: str
    reason: str


_ADDED: Final = {"sites": ("configuration",), "databases": ("readers", "rights", "hosts")}
"""Members that the release before does not know. It refuses an account with a member of a site or database that it does
not know, but ignores those of the account: so that it can still read accounts after it was put back, `Account.record`
keeps these under `added`, in the order of the sites and databases."""


@dataclass
class Account:
    format: Format
    sites: list[FoundSite] = field(default_factory=list)
    databases: list[FoundDatabase] = field(default_factory=list)
    zones: list[FoundZone] = field(default_factory=list)
    certificates: list[FoundCertificate] = field(default_factory=list)
    passwords: list[FoundPasswords] = field(default_factory=list)
    rules: list[FoundRules] = field(default_factory=list)
    tasks: list[FoundTask] = field(default_factory=list)
    left: list[SkippedItem] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """For JSON. The release before can read it, too."""
        record = asdict(self)
        record["added"] = {
            kind: [{name: each.pop(name) for name in names} for each in record[kind]] for kind, names in _ADDED.items()
        }
        return record

    def leave(self, kind: Kind, name: str, reason: str) -> None:
        if len(self.left) < MOST_ITEMS:
            self.left.append(SkippedItem(kind, name[:200], reason))


FoundT = TypeVar(
    "FoundT", FoundSite, FoundDatabase, FoundRecord, FoundCertificate, FoundPasswords, FoundRules, FoundTask
)


def account_of(data: Mapping[str, Any]) -> Account:
    """The account that `record` returned, of this release or another: members that this one does not know are ignored.
    Raises ValueError, KeyError, TypeError and AttributeError for anything else."""
    return Account(
        format=Format(data["format"]),
        sites=[_made(FoundSite, each) for each in _whole(data, "sites")],
        databases=[_made(FoundDatabase, each) for each in _whole(data, "databases")],
        zones=[
            FoundZone(
                zone["name"],
                [_made(FoundRecord, each) for each in zone["records"]],
                [(str(name), str(reason)) for name, reason in zone["left"]],
            )
            for zone in data["zones"]
        ],
        certificates=[_made(FoundCertificate, each) for each in data["certificates"]],
        # Accounts that an earlier release has read do not have these two members.
        passwords=[
            _made(FoundPasswords, {**each, "left": [(str(who), str(why)) for who, why in each["left"]]})
            for each in data.get("passwords", ())
        ],
        rules=[_made(FoundRules, each) for each in data.get("rules", ())],
        tasks=[_made(FoundTask, each) for each in data["tasks"]],
        left=[SkippedItem(Kind(each["kind"]), each["name"], each["reason"]) for each in data["left"]],
    )


def _whole(data: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    """The sites or databases with their members of `added`, which accounts of an earlier release do not have."""
    found = data[kind]
    added = data.get("added", {}).get(kind) or [{}] * len(found)
    return [{**each, **more} for each, more in zip(found, added, strict=True)]


def _made(kind: type[FoundT], data: Mapping[str, Any]) -> FoundT:
    known = {each.name for each in fields(kind)}
    return kind(**{name: value for name, value in data.items() if name in known})


@dataclass
class Survey:
    """Result of one pass through an archive. `texts` are small files that a format wants; `folders` has for each folder
    the number of files in and below it, and their bytes; `marks` are files whose presence matters; `links` are symbolic
    links with their targets. `rules` are .htaccess files, `pages` folders with index pages, and which; `whole`: whether
    these two have all."""

    texts: dict[str, bytes] = field(default_factory=dict)
    folders: dict[str, tuple[int, int]] = field(default_factory=dict)
    marks: set[str] = field(default_factory=set)
    links: dict[str, str] = field(default_factory=dict)
    rules: dict[str, bytes] = field(default_factory=dict)
    pages: dict[str, list[str]] = field(default_factory=dict)
    whole: bool = True
    entries: int = 0
    size: int = 0

    def text(self, path: str) -> str:
        return self.texts.get(path, b"").decode(errors="replace")

    def there(self, folder: str) -> bool:
        return folder in self.folders

    def below(self, folder: str) -> list[str]:
        """The names of a folder's subfolders."""
        prefix = f"{folder}/" if folder else ""
        return sorted({path[len(prefix) :].split("/", 1)[0] for path in self.folders if path.startswith(prefix)} - {""})

    def matching(self, pattern: re.Pattern[str]) -> list[re.Match[str]]:
        """Texts and marks whose whole path matches the pattern."""
        return [found for path in sorted({*self.texts, *self.marks}) if (found := pattern.fullmatch(path))]

    def beneath(self, prefix: str) -> Survey:
        """The part inside one folder, with paths relative to it."""
        if not prefix:
            return self

        def cut(path: str) -> str | None:
            return path[len(prefix) :] if path.startswith(prefix) else None

        return Survey(
            {short: text for path, text in self.texts.items() if (short := cut(path)) is not None},
            {short: counted for path, counted in self.folders.items() if (short := cut(path)) is not None},
            {short for path in self.marks if (short := cut(path)) is not None},
            {short: target for path, target in self.links.items() if (short := cut(path)) is not None},
            entries=self.entries,
            size=self.size,
        )


Reader = Callable[[Survey], "Account | None"]


def domain_of(text: object) -> str | None:
    """The name as a domain, or None."""
    name = str(text).strip().strip(".").lower().removeprefix("*.")
    return name if DOMAIN.fullmatch(name) else None
