"""The panel's own kinds of events."""

from __future__ import annotations

from enum import StrEnum


class PanelEvent(StrEnum):
    SITE = "site"
    JOB = "job"
    WEBHOOK = "webhook"
    DNS = "dns"
