"""An archive that was fetched from another host by SSH (`svc_webhost.confined.fetch`): a site's folders by their paths
there, a dump of its database and, as the first entry, a description.

    svc-import.json              {"domain": ..., "folders": [the document root, others], "database": a name or null}
    svc-import/NAME.sql          the dump
    svc-import/php.json          ["8.2.1", ["Core", ...]]: version and extensions of the command line's PHP, if any
    var/www/shop/index.php       a file of /var/www/shop
    home/ada/.htpasswd           a password file that an .htaccess file of the folders names
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Sequence
from typing import Final

from svc_webhost.apache.htaccess import parse
from svc_webhost.archives.applications import describe
from svc_webhost.archives.extensions import extension_names
from svc_webhost.archives.model import Account, Format, FoundDatabase, FoundSite, Kind, Survey, domain_of
from svc_webhost.archives.placing import below
from svc_webhost.archives.surroundings import take_application

DESCRIPTION: Final = "svc-import.json"
PHP: Final = "svc-import/php.json"
WANTED: Final = re.compile(f"{re.escape(DESCRIPTION)}|{re.escape(PHP)}")
MARKED: Final = re.compile(r"svc-import/[^/]+\.sql")
HOME: Final = "svc-home "
"""How the line with the account's home starts, which is sent among lines of .htaccess files."""
_MOST_PASSWORDS: Final = 20


def dump_path(database: str) -> str:
    return f"svc-import/{database}.sql"


def named_passwords(said: str, folders: Sequence[str]) -> list[str]:
    """The password files that the .htaccess lines name and that lie below the account's home on the other host, except
    those inside the folders, which are fetched anyway."""
    home, found = "", list[str]()
    for line in said.split("\n"):
        if line.startswith(HOME) and not home:
            home = posixpath.normpath(line[len(HOME) :].strip())
        for directive in parse(line) if home.startswith("/") and home != "/" else ():
            if directive.name != "authuserfile" or len(directive.arguments) != 1:
                continue
            path = posixpath.normpath(directive.arguments[0])
            comes = any(below(posixpath.normpath(folder), path) is not None for folder in folders)
            if below(home, path) and path.isprintable() and not comes:
                found.append(path)
    return list(dict.fromkeys(found))[:_MOST_PASSWORDS]


def read(survey: Survey) -> Account | None:
    if DESCRIPTION not in survey.texts:
        return None
    try:
        told = json.loads(survey.text(DESCRIPTION))
        domain, name = domain_of(told["domain"]), told["database"]
        root, *others = [str(folder).strip("/") for folder in told["folders"]]
    except (ValueError, KeyError, TypeError):
        return None  # The archive is of another kind, and only has a file of this name.
    account = Account(Format.SSH)
    if domain is None or not survey.there(root):
        account.leave(Kind.SITE, str(told["domain"]), f"the folder /{root} of the other host has no files")
        return account
    site = FoundSite(domain, root, old_home="/")
    for folder in others:
        if not survey.there(folder):
            account.leave(Kind.FILES, folder, "the folder has no files")
        elif folder == posixpath.dirname(root):
            take_application(survey, site, folder)
        elif below(root, folder) is None:
            site.home.append(folder)
    describe(survey, site)
    site.command_line_php, site.command_line_extensions = _php(survey.text(PHP))
    account.sites.append(site)
    if name is not None and dump_path(name) in survey.marks:
        account.databases.append(FoundDatabase(name, "mariadb", dump_path(name), domain))
    return account


def _php(said: str) -> tuple[str | None, list[str]]:
    """PHP's version and extensions in the answer. Any other output, of a login shell, is ignored."""
    for line in said.splitlines():
        try:
            version, names = json.loads(line)
            return ".".join(str(version).split(".")[:2]), extension_names(names)
        except (ValueError, TypeError):
            continue
    return None, []
