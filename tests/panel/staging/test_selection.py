"""Which tables and options a push takes, by their names and by what leads to them."""

from __future__ import annotations

import pytest

from svc_actors.panel.staging import selection
from svc_actors.panel.staging.records import Baseline
from svc_actors.panel.staging.selection import Part, SiteContents


@pytest.mark.parametrize(
    ("table", "kept"),
    [
        ("wp_posts", False),
        ("wp_options", False),
        ("wp_terms", False),
        ("wp_yoast_indexable", False),
        ("wp_woocommerce_attribute_taxonomies", False),
        ("wp_woocommerce_tax_rates", False),
        ("wp_users", True),
        ("wp_usermeta", True),
        ("wp_comments", True),
        ("wp_wc_orders", True),
        ("wp_wc_orders_meta", True),
        ("wp_wc_order_stats", True),
        ("wp_wc_customer_lookup", True),
        ("wp_woocommerce_order_items", True),
        ("wp_woocommerce_order_itemmeta", True),
        ("wp_woocommerce_sessions", True),
        ("wp_actionscheduler_actions", True),
        ("wp_gf_entry", True),
        ("wp_gf_entry_meta", True),
        ("wp_gf_form", False),
        ("wp_wpforms_entries", True),
        ("wp_frm_items", True),
        ("wp_fluentform_submissions", True),
        ("wp_fluentform_forms", False),
        ("wp_e_submissions_values", True),
        ("wp_db7_forms", True),
    ],
)
def test_which_tables_visitors_write(table: str, kept: bool) -> None:
    assert selection.is_kept(table, "wp_") is kept


def test_plugins_are_active_as_they_are_pushed() -> None:
    assert "active_plugins" in selection.kept_options(["wp-content/themes"])
    assert "active_plugins" not in selection.kept_options([selection.PLUGINS])
    assert {"siteurl", "home"} <= set(selection.kept_options([selection.PLUGINS]))


def test_a_table_with_triggers_is_not_moved() -> None:
    seen = SiteContents(["wp_a", "wp_b"], [], {}, {}, bound={"wp_a"}, visitors_posts=[])

    parts = selection.tables(seen, Baseline("s1_x", "wp_"))

    assert parts == [
        Part("wp_a", False, False, False, "it has triggers, or foreign keys lead to or from it"),
        Part("wp_b", True, True, False),
    ]
