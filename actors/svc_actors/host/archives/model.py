"""What every format is read into: sites, databases, zones, certificates, tasks, and what stays behind with its reason.

Paths are those of the archive's entries, in which an archive within the archive is a folder by its own name:
`web/a.example/domain_data.tar.gz/public_html/index.php`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

MOST_ITEMS: Final = 2000
"""Of one archive, of each kind: more is no account of a customer."""
DOMAIN: Final = re.compile(r"(?=.{3,253}\Z)[\w-]{1,63}(\.[\w-]{1,63})+", re.UNICODE)


class Format(StrEnum):
    CPANEL = "cpanel"
    PLESK = "plesk"
    HESTIA = "hestia"
    VIRTUALMIN = "virtualmin"
    TREE = "tree"
    SSH = "ssh"


class Kind(StrEnum):
    """What an item of a plan is."""

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
    """`root` is the folder of its document root; `without` are folders beneath it that are other sites'. `home` are
    further folders that its programs may need, which come beside the document root."""

    domain: str
    root: str
    aliases: list[str] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    home: list[str] = field(default_factory=list)
    php: str | None = None
    extensions: list[str] = field(default_factory=list)
    """Those of PHP that its own files ask for."""
    command_line_php: str | None = None
    command_line_extensions: list[str] = field(default_factory=list)
    """Of the old host's command line, which may have another PHP than its websites."""
    wordpress: str | None = None
    """The path of its wp-config.php."""
    applications: list[str] = field(default_factory=list)
    """Configurations of other programs, which are to be changed by hand."""
    database: str | None = None
    """That its wp-config.php names."""
    files: int = 0
    size: int = 0
    old_home: str | None = None
    """Where the home of the account was on the other host: absolute links and tasks lead there."""
    home_in_archive: str = ""


@dataclass
class FoundDatabase:
    """`dump` is a file of SQL, plain or compressed. `site` is the domain that it goes with."""

    name: str
    engine: str
    dump: str
    site: str | None = None
    users: list[str] = field(default_factory=list)


@dataclass
class FoundRecord:
    name: str
    ttl: int
    type: str
    data: dict[str, Any]


@dataclass
class FoundZone:
    """`left` are records that this service has no form for, with the reason."""

    name: str
    records: list[FoundRecord] = field(default_factory=list)
    left: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class FoundCertificate:
    """Files of the archive whose PEM blocks make it up: its key is read when it is imported, and kept nowhere else."""

    domain: str
    files: list[str]


@dataclass
class FoundPasswords:
    """A folder of a site whose .htaccess file asks for a password. `path` as visitors call it; `named`: the file of the
    passwords, as the other host calls it, and `file`, as the archive does, where it is there. `logins`: how many can
    be taken over of it; `left`: who cannot, and why. `problem`: why nothing can. What a password is compared with is
    read when it is imported, and kept nowhere else than with the path."""

    site: str
    path: str
    named: str
    file: str | None
    logins: int = 0
    left: list[tuple[str, str]] = field(default_factory=list)
    problem: str | None = None


@dataclass
class FoundTask:
    """A line of a crontab: its five fields, and the command as it stood there."""

    cron: str
    command: str


@dataclass
class Left:
    """What is not imported, and why."""

    kind: Kind
    name: str
    reason: str


@dataclass
class Account:
    format: Format
    sites: list[FoundSite] = field(default_factory=list)
    databases: list[FoundDatabase] = field(default_factory=list)
    zones: list[FoundZone] = field(default_factory=list)
    certificates: list[FoundCertificate] = field(default_factory=list)
    passwords: list[FoundPasswords] = field(default_factory=list)
    tasks: list[FoundTask] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    def leave(self, kind: Kind, name: str, reason: str) -> None:
        if len(self.left) < MOST_ITEMS:
            self.left.append(Left(kind, name[:200], reason))


def account_of(told: Mapping[str, Any]) -> Account:
    """The account that `record` gave. Raises ValueError, KeyError and TypeError for what is none."""
    return Account(
        format=Format(told["format"]),
        sites=[FoundSite(**each) for each in told["sites"]],
        databases=[FoundDatabase(**each) for each in told["databases"]],
        zones=[
            FoundZone(
                zone["name"],
                [FoundRecord(**each) for each in zone["records"]],
                [(str(name), str(reason)) for name, reason in zone["left"]],
            )
            for zone in told["zones"]
        ],
        certificates=[FoundCertificate(**each) for each in told["certificates"]],
        # What an earlier release has read does not have them.
        passwords=[
            FoundPasswords(**{**each, "left": [(str(who), str(why)) for who, why in each["left"]]})
            for each in told.get("passwords", ())
        ],
        tasks=[FoundTask(**each) for each in told["tasks"]],
        left=[Left(Kind(each["kind"]), each["name"], each["reason"]) for each in told["left"]],
    )


@dataclass
class Survey:
    """What one pass through an archive has gathered. `texts` are small files that a format asked for; `folders` has for
    each folder how many files lie in and below it, and their bytes; `marks` are files whose presence says something."""

    texts: dict[str, bytes] = field(default_factory=dict)
    folders: dict[str, tuple[int, int]] = field(default_factory=dict)
    marks: set[str] = field(default_factory=set)
    entries: int = 0
    size: int = 0

    def text(self, path: str) -> str:
        return self.texts.get(path, b"").decode(errors="replace")

    def there(self, folder: str) -> bool:
        return folder in self.folders

    def below(self, folder: str) -> list[str]:
        """The names of the folders that lie in a folder."""
        prefix = f"{folder}/" if folder else ""
        return sorted({path[len(prefix) :].split("/", 1)[0] for path in self.folders if path.startswith(prefix)} - {""})

    def matching(self, pattern: re.Pattern[str]) -> list[re.Match[str]]:
        """Texts and marks whose whole path the pattern fits."""
        return [found for path in sorted({*self.texts, *self.marks}) if (found := pattern.fullmatch(path))]

    def beneath(self, prefix: str) -> Survey:
        """The same with what lies in one folder alone, by paths from there."""
        if not prefix:
            return self

        def cut(path: str) -> str | None:
            return path[len(prefix) :] if path.startswith(prefix) else None

        return Survey(
            {short: text for path, text in self.texts.items() if (short := cut(path)) is not None},
            {short: counted for path, counted in self.folders.items() if (short := cut(path)) is not None},
            {short for path in self.marks if (short := cut(path)) is not None},
            self.entries,
            self.size,
        )


Reader = Callable[[Survey], "Account | None"]


def domain_of(text: object) -> str | None:
    """The name as a domain, or None."""
    name = str(text).strip().strip(".").lower().removeprefix("*.")
    return name if DOMAIN.fullmatch(name) else None
