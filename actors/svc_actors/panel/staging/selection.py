"""What of a copy may be pushed, what is left alone, and what has changed on the live site since. Pure functions.

A table is *kept* where visitors write: orders, users, comments, what was sent by forms. It is never among what is
pushed by default, and may be named. A table is *held* where a push of it would lose what visitors have written and
cannot be told apart from pages: posts, where orders are kept as posts. It cannot be named.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from svc_actors.errors import conflict, invalid
from svc_actors.host.staging.trees import CONTENT
from svc_actors.panel.staging.records import Baseline

OPTIONS: Final = "options"
POSTS: Final = "posts"
_OF_POSTS: Final = (POSTS, "postmeta", "term_relationships")
"""They name posts by their numbers, and make sense with them alone."""
UPLOADS: Final = f"{CONTENT}/uploads"
"""What the live site has and the copy lacks stays: visitors and editors add files all the time."""
PLUGINS: Final = f"{CONTENT}/plugins"
_NOT_COPIED: Final = frozenset({f"{CONTENT}/{name}" for name in ("cache", "upgrade", "upgrade-temp-backup")})

_VISITORS: Final = re.compile(
    r"(?:"
    r"users|usermeta|comments|commentmeta|signups"
    # WooCommerce: orders in their own tables, what is counted of them, sessions, downloads, payments.
    r"|wc_.*|woocommerce_(?:order|payment_token|session|downloadable|log|api_keys).*|actionscheduler_.*"
    # Other shops, bookings and memberships.
    r"|edd_.*|pmpro_.*|mepr_.*|bookings?_.*|bookly_.*|amelia_.*|learnpress_.*|rcp_.*"
    # Entries of forms, and lists of readers.
    r"|gf_(?:entry|draft).*|rg_lead.*|wpforms_(?:entries|entry|payments|logs).*|frm_item.*|nf3_objects|nf3_upgrades"
    r"|fluentform_(?:submission|entry|logs|transactions|order).*|e_submissions.*|db7_forms|cf7_.*|forminator_frmt_form_entry.*"
    r"|frmt_form_(?:entry|views).*|formmaker_.*|everest_forms_entr.*|mailpoet_.*|newsletter.*|fc_.*|mailster_.*"
    # What people see of each other, and what is counted of them.
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
"""Posts that visitors have made."""

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
"""Options that change by themselves: they are no drift, and stay as the live site has them."""
LIVE: Final = (
    *("siteurl", "home", "blog_public", "admin_email", "new_admin_email", "upload_path", "upload_url_path"),
    # Keys of payment and of other services: a copy has those of their test modes.
    *("woocommerce_%_settings", "%api_key%", "%secret%", "%license%", "mailserver_%"),
)
"""Options that are of the live site alone."""
ACTIVE_PLUGINS: Final = ("active_plugins", "uninstall_plugins")


@dataclass(frozen=True)
class Part:
    """An entry of the files (`wp-content/themes`), or a table (`wp_posts`). `default`: it is pushed unless something
    else is asked for. `why`: why it is not, or cannot be. `drifted`: it was changed on the live site since the copy."""

    name: str
    default: bool
    allowed: bool
    drifted: bool
    why: str | None = None


@dataclass(frozen=True)
class Seen:
    """Both sites now. Facts are those of the live site; names those of the copy."""

    copied_tables: Sequence[str]
    copied_files: Sequence[str]
    live_tables: Mapping[str, str]
    live_files: Mapping[str, str]
    bound: Collection[str]
    visitors_posts: Collection[str]
    """The types of posts of visitors that the live site has."""


def is_copied(entry: str) -> bool:
    """Caches are made anew, and are no part of a site."""
    return entry not in _NOT_COPIED


def is_kept(table: str, prefix: str) -> bool:
    return _VISITORS.fullmatch(table.removeprefix(prefix)) is not None


def tables(seen: Seen, base: Baseline) -> list[Part]:
    parts = []
    for name in seen.copied_tables:
        if not name.startswith(base.prefix):
            continue
        drifted = seen.live_tables.get(name) != base.tables.get(name)
        allowed, why = True, None
        if seen.visitors_posts and name.removeprefix(base.prefix) in _OF_POSTS:
            types = ", ".join(seen.visitors_posts)
            allowed, why = False, f"the live site keeps what visitors have made as posts ({types}), which would be lost"
        elif name in seen.bound:
            allowed, why = False, "it has triggers, or foreign keys lead to or from it"
        elif is_kept(name, base.prefix):
            why = "visitors write it: orders, users, comments or entries of forms"
        parts.append(Part(name, why is None, allowed, drifted, why))
    return parts


def files(seen: Seen, base: Baseline) -> list[Part]:
    return [
        Part(
            name,
            default=is_copied(name),
            allowed=is_copied(name),
            # Of uploads nothing that the live site has is lost.
            drifted=name != UPLOADS and seen.live_files.get(name) != base.files.get(name),
            why=None if is_copied(name) else "it is a cache of the site's own",
        )
        for name in sorted({*seen.copied_files, *base.files})
    ]


@dataclass(frozen=True)
class Choice:
    """`files` and `tables` of a push; None: what is pushed by default, if neither is said, else nothing of them."""

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
    """Of a push of the options. Which plugins are active changes with the plugins themselves, or not at all."""
    return [*VOLATILE, *LIVE, *(() if PLUGINS in pushed_files else ACTIVE_PLUGINS)]
