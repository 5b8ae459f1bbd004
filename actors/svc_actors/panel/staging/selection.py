"""Decides which parts of a copy may be pushed and which stay, and finds what has changed on the live site since. Pure
functions.

A table is *kept* if visitors write to it: orders, users, comments, entries of forms. It is not pushed by default, but
may be named. A table is *held* if a push would lose what visitors have written, because that cannot be distinguished
from pages: this is so for posts if orders are stored as posts. A held table cannot be named.

Rejected: merging rows of posts. The live site and the copy give the same numbers to different posts, and new posts are
added while a merge runs, so no rule distinguishes them reliably.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from svc_actors.panel.staging.records import Baseline
from svc_common.errors import conflict, invalid
from svc_webhost.staging.trees import CONTENT

OPTIONS: Final = "options"
POSTS: Final = "posts"
_OF_POSTS: Final = (POSTS, "postmeta", "term_relationships")
"""Tables whose rows refer to posts by number, and mean nothing without them."""
UPLOADS: Final = f"{CONTENT}/uploads"
"""In this folder, files that only the live site has are kept: visitors and editors add files all the time."""
PLUGINS: Final = f"{CONTENT}/plugins"
# These are not copied: caches, and the folders in which WordPress updates itself.
_NOT_COPIED: Final = frozenset({f"{CONTENT}/{name}" for name in ("cache", "upgrade", "upgrade-temp-backup")})

_VISITORS: Final = re.compile(
    r"(?:"
    r"users|usermeta|comments|commentmeta|signups"
    # WooCommerce: tables for orders and their statistics, sessions, downloads, payments.
    r"|wc_.*|woocommerce_(?:order|payment_token|session|downloadable|log|api_keys).*|actionscheduler_.*"
    # Tables of other shops, bookings and memberships.
    r"|edd_.*|pmpro_.*|mepr_.*|bookings?_.*|bookly_.*|amelia_.*|learnpress_.*|rcp_.*"
    # Entries of forms, and lists of newsletter readers.
    r"|gf_(?:entry|draft).*|rg_lead.*|wpforms_(?:entries|entry|payments|logs).*|frm_item.*|nf3_objects|nf3_upgrades"
    r"|fluentform_(?:submission|entry|logs|transactions|order).*|e_submissions.*|db7_forms|cf7_.*|forminator_frmt_form_entry.*"
    r"|frmt_form_(?:entry|views).*|formmaker_.*|everest_forms_entr.*|mailpoet_.*|newsletter.*|fc_.*|mailster_.*"
    # Communities, statistics and logs.
    r"|bp_.*|bbp_.*|statistics_.*|redirection_(?:logs|404)|simple_history.*|wf.*|wsal_.*|gdpr.*|icl_(?:mo_files|background).*"
    r")"
)
VISITORS_POSTS: Final = frozenset(
    {
        *("shop_order", "shop_order_refund", "shop_order_placehold", "shop_subscription"),
        *("edd_payment", "nf_sub", "flamingo_inbound", "flamingo_contact", "feedback", "wpcf7s"),
        *("wc_booking", "wc_user_membership", "give_payment", "sensei_message", "topic", "reply"),
    }
)
"""Types of posts that visitors create."""

VOLATILE: Final = (
    *("%transient%", "cron", "%_lock", "%.lock", "recently_%", "rewrite_rules", "https_detection_errors"),
    *(
        "user_count",
        "fresh_site",
        "auto_core_update_notified",
        "can_compress_scripts",
        "recovery_%",
        "action_scheduler_%",
    ),
    *("db_upgraded", "finished_%", "wp_attachment_pages_enabled", "nonce_%", "auth_%", "logged_in_%", "secure_auth_%"),
)
"""Patterns of options that change by themselves. Changes of these are no drift, and a push keeps the live site's
values."""
LIVE: Final = (
    *("siteurl", "home", "blog_public", "admin_email", "new_admin_email", "upload_path", "upload_url_path"),
    # Keys of payment and other services: the copy may have the keys of their test modes.
    *("woocommerce_%_settings", "%api_key%", "%secret%", "%license%", "mailserver_%"),
)
"""Patterns of options that keep the live site's values."""
ACTIVE_PLUGINS: Final = ("active_plugins", "uninstall_plugins")


@dataclass(frozen=True)
class Part:
    """An entry of the files (`wp-content/themes`), or a table (`wp_posts`). `default`: it is pushed unless the caller
    names other parts. `why`: the reason why it is not pushed by default, or cannot be pushed. `drifted`: it has changed
    on the live site since the copy."""

    name: str
    default: bool
    allowed: bool
    drifted: bool
    why: str | None = None


@dataclass(frozen=True)
class SiteContents:
    """Both sites as they are now: the names of the copy's parts, and the facts of the live site's."""

    copied_tables: Sequence[str]
    copied_files: Sequence[str]
    live_tables: Mapping[str, str]
    live_files: Mapping[str, str]
    bound: Collection[str]
    visitors_posts: Collection[str]
    """The types of visitors' posts that the live site contains."""


def is_copied(entry: str) -> bool:
    """Whether the entry is part of a copy: caches are not."""
    return entry not in _NOT_COPIED


def is_kept(table: str, prefix: str) -> bool:
    return _VISITORS.fullmatch(table.removeprefix(prefix)) is not None


def tables(seen: SiteContents, base: Baseline) -> list[Part]:
    # Only tables with the site's prefix are parts: the database may contain tables of other programs, which a push
    # leaves alone.
    parts = []
    for name in seen.copied_tables:
        if not name.startswith(base.prefix):
            continue
        drifted = seen.live_tables.get(name) != base.tables.get(name)
        allowed, why = True, None
        if seen.visitors_posts and name.removeprefix(base.prefix) in _OF_POSTS:
            types = ", ".join(seen.visitors_posts)
            allowed, why = False, f"the live site keeps what visitors have made as posts ({types}), which would be lost"
        # RENAME TABLE into another database refuses tables with triggers, and foreign keys follow a table that is moved
        # aside.
        elif name in seen.bound:
            allowed, why = False, "it has triggers, or foreign keys lead to or from it"
        elif is_kept(name, base.prefix):
            why = "visitors write it: orders, users, comments or entries of forms"
        parts.append(Part(name, why is None, allowed, drifted, why))
    return parts


def files(seen: SiteContents, base: Baseline) -> list[Part]:
    return [
        Part(
            name,
            default=is_copied(name),
            allowed=is_copied(name),
            # Uploads are merged, so a change of the live site's uploads cannot be lost.
            drifted=name != UPLOADS and seen.live_files.get(name) != base.files.get(name),
            why=None if is_copied(name) else "it is a cache of the site's own",
        )
        # The list includes parts that were removed from the copy: pushing such a part removes it from the live site.
        # Parts that were added to the live site since the copy are in neither list.
        for name in sorted({*seen.copied_files, *base.files})
    ]


@dataclass(frozen=True)
class Choice:
    """The `files` and `tables` of a push. If both are None, the defaults are pushed. If one of them is None, no part of
    that kind is pushed."""

    files: Sequence[str] | None
    tables: Sequence[str] | None

    def of_files(self, parts: Sequence[Part]) -> list[str]:
        return _chosen("files", self.files, parts, by_default=self.tables is None)

    def of_tables(self, parts: Sequence[Part]) -> list[str]:
        return _chosen("tables", self.tables, parts, by_default=self.files is None)


def _chosen(field: str, names: Sequence[str] | None, parts: Sequence[Part], *, by_default: bool) -> list[str]:
    if names is None:
        return [part.name for part in parts if part.default] if by_default else []
    known = {part.name: part for part in parts}
    for name in names:
        if name not in known:
            raise invalid(
                f"{field}: the copy has no {name}; nothing was pushed.",
                hint="`staging.preview` lists what can be pushed.",
            )
        if not known[name].allowed:
            raise conflict(f"{name} cannot be pushed: {known[name].why}; nothing was pushed.")
    return sorted(set(names))


def drift(parts: Sequence[Part], chosen: Collection[str]) -> list[str]:
    return [part.name for part in parts if part.drifted and part.name in chosen]


def kept_options(pushed_files: Collection[str]) -> list[str]:
    """Patterns of the options that keep the live site's values in a push of the options table."""
    # The list of active plugins is pushed only together with the plugins' files: alone it would activate plugins that
    # the live site does not have.
    return [*VOLATILE, *LIVE, *(() if PLUGINS in pushed_files else ACTIVE_PLUGINS)]
