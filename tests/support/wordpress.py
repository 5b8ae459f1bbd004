"""WordPress that a test plays: what would be done in sites is remembered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from svc_webhost.accounts import SiteAccount
from svc_webhost.launcher import Limits
from svc_webhost.wordpress import (
    ConfiguredDatabase,
    Handover,
    Installation,
    LoginLink,
    Plugin,
    SiteDatabase,
    Theme,
    WordPressRefusedError,
    WordPressSite,
    WordPressState,
)
from tests.support.panel_sites import nothing

PLUGIN = "akismet/akismet.php"
_EXPIRES = 2_000_000_000


@dataclass
class RecordedWordPress:
    """`before` is called before each step with its name: a test lets it fail, or stops there."""

    files: dict[str, str] = field(default_factory=dict)
    """The language, by the account."""
    installed: dict[str, Installation] = field(default_factory=dict)
    attempts: int = 0
    passwords: dict[tuple[str, str], str] = field(default_factory=dict)
    links: list[tuple[str, str]] = field(default_factory=list)
    active: set[tuple[str, str]] = field(default_factory=set)
    maintenance: set[str] = field(default_factory=set)
    left_cron: list[str] = field(default_factory=list)
    flushed: list[str] = field(default_factory=list)
    handed_over: list[tuple[str, Handover]] = field(default_factory=list)
    limits: dict[tuple[str, str], Limits] = field(default_factory=dict)
    """Those that the site's own code had, by what it was last asked."""
    staged: dict[tuple[str, str], bool] = field(default_factory=dict)
    """Whether it was told that the site is a copy."""
    before: Callable[[str], Awaitable[None]] = field(default=lambda step: nothing())

    async def languages(self) -> frozenset[str]:
        return frozenset({"de_DE", "fr_FR"})

    async def place_files(self, account: SiteAccount, locale: str) -> None:
        await self.before("place_files")
        self.files[account.name] = locale

    async def install(self, account: SiteAccount, limits: Limits, installation: Installation) -> str:
        self.limits[account.name, "install"] = limits
        self.attempts += 1
        await self.before("install")
        assert account.name in self.files, "the files come before what they install"
        self.installed[account.name] = installation
        self.passwords[account.name, installation.login] = installation.password
        return "6.1.9"

    async def look(self, site: WordPressSite) -> WordPressState:
        account = self._asked(site, "look")
        await self.before("look")
        wanted = self.installed[account.name]
        return WordPressState(
            version="6.1.9",
            update="6.1.10",
            title=wanted.title,
            language=wanted.locale or "en_US",
            debug=False,
            maintenance=account.name in self.maintenance,
            plugins=[
                Plugin(
                    file=PLUGIN,
                    name="Akismet",
                    version="5.0.2",
                    active=(account.name, PLUGIN) in self.active,
                    update=None,
                )
            ],
            themes=[Theme(folder="twentytwentythree", name="T", version="1.0", active=True, update="1.1")],
        )

    async def login_link(self, site: WordPressSite, login: str) -> LoginLink:
        account = self._asked(site, "login_link")
        await self.before("login_link")
        self._known(account, login)
        self.links.append((account.name, login))
        return LoginLink(path=f"/svc-login-{len(self.links):064x}.php", login=login, until=_EXPIRES)

    async def set_password(self, site: WordPressSite, login: str, password: str) -> None:
        account = self._asked(site, "set_password")
        self._known(account, login)
        self.passwords[account.name, login] = password

    async def hand_over(self, site: WordPressSite, handover: Handover) -> int:
        account = self._asked(site, "hand_over")
        await self.before("hand_over")
        self.handed_over.append((account.name, handover))
        self.passwords = {key: "" if key[0] == account.name else known for key, known in self.passwords.items()}
        return 1

    async def switch_plugin(self, site: WordPressSite, plugin: str, *, active: bool) -> None:
        account = self._asked(site, "switch_plugin")
        if plugin != PLUGIN:
            raise WordPressRefusedError(f"there is no plugin {plugin}")
        (self.active.add if active else self.active.discard)((account.name, plugin))

    async def set_maintenance(self, account: SiteAccount, *, maintenance: bool) -> None:
        (self.maintenance.add if maintenance else self.maintenance.discard)(account.name)

    async def configured(self, account: SiteAccount) -> ConfiguredDatabase:
        await self.before("configured")
        return ConfiguredDatabase(database=f"{account.name}_wordpress", prefix="wp_")

    async def configuration_of_copy(self, account: SiteAccount, domain: str, database: SiteDatabase) -> str:
        await self.before("configuration_of_copy")
        return f"<?php // {domain} {database.name} {database.user}\n"

    async def flush(self, site: WordPressSite) -> None:
        await self.before("flush")
        self.flushed.append(site.account.name)

    async def leave_cron(self, account: SiteAccount) -> None:
        await self.before("leave_cron")
        self.left_cron.append(account.name)

    def _asked(self, site: WordPressSite, question: str) -> SiteAccount:
        self.limits[site.account.name, question] = site.limits
        self.staged[site.account.name, question] = site.staged
        return site.account

    def _known(self, account: SiteAccount, login: str) -> None:
        if (account.name, login) not in self.passwords:
            raise WordPressRefusedError(f"there is no user {login}")
