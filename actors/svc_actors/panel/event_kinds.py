"""Events that only the panel emits."""

from __future__ import annotations

from enum import StrEnum


class PanelEvent(StrEnum):
    SITE = "site"
    JOB = "job"
    WEBHOOK = "webhook"
    DNS = "dns"
