"""Health of the panel's server: what is looked at each minute, and what is told when it changes."""

from svc_actors.panel.health.records import CheckName, HealthStatus

__all__ = ["CheckName", "HealthStatus"]
