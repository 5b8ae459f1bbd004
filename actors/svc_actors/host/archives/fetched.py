"""What was fetched from another host by SSH (`host.confined.fetch`): the folders of a site by their paths there, a dump
of its database, and first a description, which says what is which.

    svc-import.json              {"domain": ..., "folders": [the document root, others], "database": a name or null}
    svc-import/NAME.sql          the dump
    var/www/shop/index.php       a file of /var/www/shop
"""

from __future__ import annotations

import json
import re
from typing import Final

from svc_actors.host.archives.applications import describe
from svc_actors.host.archives.model import Account, Format, FoundDatabase, FoundSite, Kind, Survey, domain_of
from svc_actors.host.archives.placing import below

DESCRIPTION: Final = "svc-import.json"
WANTED: Final = re.compile(re.escape(DESCRIPTION))
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
    account.sites.append(site)
    if name is not None and dump_path(name) in survey.marks:
        account.databases.append(FoundDatabase(name, "mariadb", dump_path(name), domain))
    return account
