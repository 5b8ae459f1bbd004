"""Health of the panel's server: checks that run each minute, and notifications when a status changes.

Programs of single sites are not part of it: they rest when nobody uses them, and have alerts of their own.
"""

from svc_actors.panel.health.records import CheckName, HealthStatus

__all__ = ["CheckName", "HealthStatus"]
