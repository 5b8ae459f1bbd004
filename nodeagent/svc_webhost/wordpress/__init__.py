"""WordPress on this server: the source of its files, and operations in a site that has it."""

from svc_webhost.wordpress.configuration import SiteDatabase
from svc_webhost.wordpress.sites import (
    LINK_SECONDS,
    ConfiguredDatabase,
    Handover,
    Installation,
    LoginLink,
    PhpWordPressSites,
    Plugin,
    Theme,
    WordPressRefusedError,
    WordPressSite,
    WordPressSites,
    WordPressState,
)
from svc_webhost.wordpress.source import DEBIAN, WordPressError, WordPressSource, WordPressTree

__all__ = [
    "DEBIAN",
    "LINK_SECONDS",
    "ConfiguredDatabase",
    "Handover",
    "Installation",
    "LoginLink",
    "PhpWordPressSites",
    "Plugin",
    "SiteDatabase",
    "Theme",
    "WordPressError",
    "WordPressRefusedError",
    "WordPressSite",
    "WordPressSites",
    "WordPressSource",
    "WordPressState",
    "WordPressTree",
]
