"""What was fetched from another host by SSH (`host.confined.fetch`): the folders of a site by their paths there, a dump
of its database, and first a description, which says what is which.

    svc-import.json              {"domain": ..., "folders": [the document root, others], "database": a name or null}
    svc-import/NAME.sql          the dump
    svc-import/php.json          ["8.2.1", ["Core", ...]]: what PHP of the command line there is, if there is one
    var/www/shop/index.php       a file of /var/www/shop
"""

from __future__ import annotations

import json
import re
from typing import Final

from svc_actors.host.archives.applications import describe
from svc_actors.host.archives.extensions import extension_names
from svc_actors.host.archives.model import Account, Format, FoundDatabase, FoundSite, Kind, Survey, domain_of
from svc_actors.host.archives.placing import below

DESCRIPTION: Final = "svc-import.json"
PHP: Final = "svc-import/php.json"
WANTED: Final = re.compile(f"{re.escape(DESCRIPTION)}|{re.escape(PHP)}")
MARKED: Final = re.compile(r"svc-import/[^/]+\.sql")


def dump_path(database: str) -> str:
    return f"svc-import/{database}.sql"


def read(survey: Survey) -> Account | None:
    if DESCRIPTION not in survey.texts:
        return None
    try:
        told = json.loads(survey.text(DESCRIPTION))
        domain, name = domain_of(told["domain"]), told["database"]
        root, *others = [str(folder).strip("/") for folder in told["folders"]]
    except (ValueError, KeyError, TypeError):
        return None  # A file of that name in somebody's archive.
    account = Account(Format.SSH)
    if domain is None or not survey.there(root):
        account.leave(Kind.SITE, str(told["domain"]), f"the folder /{root} of the other host has no files")
        return account
    site = FoundSite(domain, root, old_home="/")
    for folder in others:
        if not survey.there(folder):
            account.leave(Kind.FILES, folder, "the folder has no files")
        elif below(root, folder) is None:
            site.home.append(folder)
    describe(survey, site)
    site.command_line_php, site.command_line_extensions = _php(survey.text(PHP))
    account.sites.append(site)
    if name is not None and dump_path(name) in survey.marks:
        account.databases.append(FoundDatabase(name, "mariadb", dump_path(name), domain))
    return account


def _php(said: str) -> tuple[str | None, list[str]]:
    """What a login shell says beside it is no answer."""
    for line in said.splitlines():
        try:
            version, names = json.loads(line)
            return ".".join(str(version).split(".")[:2]), extension_names(names)
        except (ValueError, TypeError):
            continue
    return None, []
