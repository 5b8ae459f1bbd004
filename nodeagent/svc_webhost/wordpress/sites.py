"""Manages WordPress in sites, with PHP that runs as the account of the site, and sees nothing of other sites.

The work is done by `php/tool.php`, which calls WordPress's own functions. It gets one JSON object on its standard
input, so that no secret is in an argument or in the environment, and answers with one line after a random word, to tell
it from other output of plugins. Still, anybody who may change the files of a site controls what its PHP answers: an
answer is checked before it is used, and concerns that site alone. PHP loads the site's own code, within the limits of
the site here as well.

Why: docs/decisions/0046-wordpress-and-staging.md.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, TypeVar

import trio
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from svc_webhost.accounts import SiteAccount
from svc_webhost.database_clients import HOST
from svc_webhost.folders import HostFolders
from svc_webhost.launcher import LauncherError, Limits, SiteLauncher
from svc_webhost.php import kept_mail
from svc_webhost.programs import Program, run_program
from svc_webhost.site_runtime import SiteCommands, site_environment
from svc_webhost.wordpress.configuration import SiteDatabase, configuration, new_salts
from svc_webhost.wordpress.source import WordPressError, WordPressTree

LINK_SECONDS: Final = 300
_INSTALL_SECONDS: Final = 300.0
"""Enough for a busy server."""
_ASK_SECONDS: Final = 60.0
_MOST_ANSWERED: Final = 1 << 20
_PHP: Final = "/usr/bin/php"
_PHP_FILES: Final = Path(__file__).with_name("php")
_PERMALINKS: Final = "/%postname%/"
_Text = Annotated[str, Field(max_length=300)]


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


A = TypeVar("A", bound=_Answer)


class Plugin(_Answer):
    """`file` names it: `akismet/akismet.php`. `update`: the newer version that WordPress knows of."""

    file: _Text
    name: _Text
    version: _Text
    active: bool
    update: _Text | None


class Theme(_Answer):
    folder: _Text
    name: _Text
    version: _Text
    active: bool
    update: _Text | None


class WordPressState(_Answer):
    """What a WordPress reports. `update`: the newer version of WordPress that it knows of."""

    version: _Text
    update: _Text | None
    title: _Text
    language: _Text
    debug: bool
    maintenance: bool
    plugins: Annotated[list[Plugin], Field(max_length=1000)]
    themes: Annotated[list[Theme], Field(max_length=1000)]


class LoginLink(_Answer):
    """`path` below the site's address logs one visitor in, once, until `until` (seconds since the epoch)."""

    path: Annotated[str, Field(pattern=r"^/svc-login-[0-9a-f]{64}\.php$")]
    login: _Text
    until: int


class _Installed(_Answer):
    version: _Text


class _HandedOver(_Answer):
    administrators: int


class _Done(_Answer):
    pass


@dataclass(frozen=True)
class Installation:
    """`login`, `email` and `password` are the first administrator's; `locale` is empty for English."""

    domain: str
    title: str
    login: str
    email: str
    password: str
    locale: str
    database: SiteDatabase


@dataclass(frozen=True)
class WordPressSite:
    """The site whose code runs, within its limits. `staged`: it is a staging copy, in which its mail is kept."""

    account: SiteAccount
    domain: str
    limits: Limits
    staged: bool


@dataclass(frozen=True)
class Handover:
    """`login` is the first administrator, whose address becomes `email`. Without a `database_password` the one in
    wp-config.php stays."""

    login: str
    email: str
    database_password: str | None


class ConfiguredDatabase(_Answer):
    """The database and the prefix of the tables in wp-config.php."""

    database: Annotated[str, Field(pattern=r"^[A-Za-z0-9_$-]{1,64}$")]
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_]{0,40}$")]


class _Configuration(_Answer):
    text: Annotated[str, Field(max_length=500_000)]


class WordPressRefusedError(WordPressError):
    """This WordPress does not have the requested item, or refuses the request."""


class WordPressSites(Protocol):
    """Every method raises `WordPressError`, and may be repeated."""

    async def languages(self) -> frozenset[str]:
        """The languages in which a site can be installed, besides English."""
        ...

    async def place_files(self, account: SiteAccount, locale: str) -> None:
        """Put the files of WordPress into the document root."""
        ...

    async def install(self, account: SiteAccount, limits: Limits, installation: Installation) -> str:
        """Install a new WordPress in the site's database, whose content is lost; returns its version."""
        ...

    async def look(self, site: WordPressSite) -> WordPressState: ...

    async def login_link(self, site: WordPressSite, login: str) -> LoginLink:
        """A new link that logs one visitor in. Raises `WordPressRefusedError` if there is no such user."""
        ...

    async def set_password(self, site: WordPressSite, login: str, password: str) -> None:
        """Set a user's password and end their sessions. Raises `WordPressRefusedError` if there is no such user."""
        ...

    async def hand_over(self, site: WordPressSite, handover: Handover) -> int:
        """End the previous owner's access: write this database password, if given, into wp-config.php, and give every
        administrator a new password and remove their sessions, application passwords and login links. Returns how many
        administrators there are."""
        ...

    async def switch_plugin(self, site: WordPressSite, plugin: str, *, active: bool) -> None:
        """Activate or deactivate a plugin. Raises `WordPressRefusedError` if there is no such plugin, or it cannot be
        activated."""
        ...

    async def set_maintenance(self, account: SiteAccount, *, maintenance: bool) -> None:
        """Turn maintenance mode on or off; while it is on, visitors get the maintenance page."""
        ...

    async def configured(self, account: SiteAccount) -> ConfiguredDatabase:
        """The values in its wp-config.php. Raises `WordPressRefusedError` unless they are written as plain strings."""
        ...

    async def configuration_of_copy(self, account: SiteAccount, domain: str, database: SiteDatabase) -> str:
        """The wp-config.php of a copy of this site, with this domain and this database: otherwise the owner's own, but
        with new salts. Changes nothing. Raises as `configured`."""
        ...

    async def flush(self, site: WordPressSite) -> None:
        """Empty the caches of WordPress and its plugins."""
        ...

    async def leave_cron(self, account: SiteAccount) -> None:
        """Stop visitors from triggering due tasks. Raises `WordPressRefusedError` if its wp-config.php is not in a form
        that can be changed safely."""
        ...


class PhpWordPressSites:
    """Runs `php/tool.php` with this server's command line PHP, as the site's account and within its limits."""

    def __init__(self, folders: HostFolders, launcher: SiteLauncher, tree: WordPressTree) -> None:
        self._folders = folders
        self._commands = SiteCommands(folders, launcher)
        self._tree = tree
        self._tool = folders.wordpress / "tool"
        self._placed = False
        self._placing = trio.Lock()
        self._asked: defaultdict[int, trio.Lock] = defaultdict(trio.Lock)

    async def languages(self) -> frozenset[str]:
        return await self._tree.languages()

    async def place_files(self, account: SiteAccount, locale: str) -> None:
        source = await self._tree.path()
        order = {"do": "place_files", "source": str(source), "locale": locale}
        await self._ask(_Done, account, order, shown=source, seconds=_INSTALL_SECONDS)

    async def install(self, account: SiteAccount, limits: Limits, installation: Installation) -> str:
        order = {
            "do": "install",
            "host": installation.domain,
            "configuration": configuration(installation.domain, installation.database),
            "permalinks": _PERMALINKS,
            "title": installation.title,
            "login": installation.login,
            "email": installation.email,
            "password": installation.password,
            "locale": installation.locale,
        }
        return (await self._ask(_Installed, account, order, limits=limits, seconds=_INSTALL_SECONDS)).version

    async def look(self, site: WordPressSite) -> WordPressState:
        return await self._ask_site(WordPressState, site, {"do": "look"})

    async def login_link(self, site: WordPressSite, login: str) -> LoginLink:
        return await self._ask_site(LoginLink, site, {"do": "login", "login": login, "seconds": LINK_SECONDS})

    async def set_password(self, site: WordPressSite, login: str, password: str) -> None:
        await self._ask_site(_Done, site, {"do": "set_password", "login": login, "password": password})

    async def hand_over(self, site: WordPressSite, handover: Handover) -> int:
        password = handover.database_password
        order = {
            "do": "hand_over",
            "constants": {**new_salts(), **({"DB_PASSWORD": password} if password is not None else {})},
            "login": handover.login,
            "email": handover.email,
        }
        return (await self._ask_site(_HandedOver, site, order)).administrators

    async def switch_plugin(self, site: WordPressSite, plugin: str, *, active: bool) -> None:
        order = {"do": "switch_plugin", "plugin": plugin, "active": active, "with_plugins": active}
        await self._ask_site(_Done, site, order)

    async def set_maintenance(self, account: SiteAccount, *, maintenance: bool) -> None:
        await self._ask(_Done, account, {"do": "set_maintenance", "maintenance": maintenance})

    async def configured(self, account: SiteAccount) -> ConfiguredDatabase:
        return await self._ask(ConfiguredDatabase, account, {"do": "configured"})

    async def configuration_of_copy(self, account: SiteAccount, domain: str, database: SiteDatabase) -> str:
        order = {
            "do": "configuration_of_copy",
            "host": domain,
            "constants": {
                "DB_NAME": database.name,
                "DB_USER": database.user,
                "DB_PASSWORD": database.password,
                "DB_HOST": HOST,
                "WP_ENVIRONMENT_TYPE": "staging",
                **new_salts(),
            },
        }
        return (await self._ask(_Configuration, account, order)).text

    async def flush(self, site: WordPressSite) -> None:
        await self._ask_site(_Done, site, {"do": "flush", "with_plugins": True})

    async def leave_cron(self, account: SiteAccount) -> None:
        await self._ask(_Done, account, {"do": "leave_cron"})

    async def _ask_site(self, kind: type[A], site: WordPressSite, order: dict[str, Any]) -> A:
        order = {"host": site.domain, **order}
        return await self._ask(kind, site.account, order, limits=site.limits, staged=site.staged)

    async def _ask(
        self,
        kind: type[A],
        account: SiteAccount,
        order: dict[str, Any],
        *,
        limits: Limits | None = None,
        staged: bool = False,
        shown: Path | None = None,
        seconds: float = _ASK_SECONDS,
    ) -> A:
        await self._place_tool()
        environment, seen = site_environment(self._folders, account), [self._tool]
        if shown is not None:
            seen.append(shown)
        if staged:
            seen.append(await trio.to_thread.run_sync(kept_mail.prepare, account, self._folders))
            environment |= kept_mail.environment(account, self._folders)
        nonce = secrets.token_hex(16)
        public = self._folders.sites / account.name / "public"
        whole = json.dumps({"nonce": nonce, "public": str(public), **order}).encode()
        words = (_PHP, "-d", "display_errors=0", "-d", "memory_limit=512M", str(self._tool / "tool.php"))
        try:
            command = await self._commands.command(account, words, limits, shown=seen)
        except LauncherError as error:
            raise WordPressError(str(error)) from error
        answer: list[str] = []
        read = 0

        async def take(lines: list[str]) -> None:
            nonlocal read
            read += sum(map(len, lines))
            if read > _MOST_ANSWERED:
                raise WordPressError("the site's WordPress returned more output than expected")
            answer.extend(line.removeprefix(nonce) for line in lines if line.startswith(nonce))

        # One request at a time, so that concurrent requests cannot multiply the site's limits.
        async with self._asked[account.number]:
            with _in_memory(whole) as stdin, trio.move_on_after(seconds) as deadline:
                program = Program(command, environment, stdin=stdin)
                status = await run_program(program, take)
        if deadline.cancelled_caught:
            raise WordPressError(f"the site's WordPress did not answer within {seconds:g} seconds")
        if len(answer) != 1:
            raise WordPressError(f"the site's PHP ended with the status {status} and without an answer")
        return _checked(kind, answer[0])

    async def _place_tool(self) -> None:
        """Copy the tool to a folder that every site's account can read: the panel's own files may be in a folder that
        accounts cannot enter."""
        async with self._placing:
            if not self._placed:
                await trio.to_thread.run_sync(_place, self._tool)
                self._placed = True


def _place(to: Path) -> None:
    to.mkdir(mode=0o755, parents=True, exist_ok=True)
    for file in _PHP_FILES.glob("*.php"):
        part = to / f"{file.name}.part"
        shutil.copyfile(file, part)
        part.chmod(0o644)
        part.rename(to / file.name)
    for folder in (to, to.parent):
        folder.chmod(0o755)


@contextmanager
def _in_memory(content: bytes) -> Iterator[Path]:
    """An anonymous file in memory, of which nothing is on a disk."""
    descriptor = os.memfd_create("order")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _checked(kind: type[A], line: str) -> A:
    try:
        told = json.loads(line)
        if "error" in told:
            error = WordPressRefusedError if told.get("refused") is True else WordPressError
            raise error(" ".join(str(told["error"]).split())[:500])
        return kind.model_validate(told["result"])
    except (ValueError, TypeError, KeyError, AttributeError, ValidationError) as error:
        raise WordPressError("the site's PHP gave an unexpected answer") from error
