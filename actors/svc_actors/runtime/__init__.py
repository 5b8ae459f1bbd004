"""The actor runtime: typed messages to supervised Trio tasks. It depends on Trio, and on nothing of the services."""

from svc_actors.runtime.actor import Actor, Ref
from svc_actors.runtime.errors import (
    ActorCrashed,
    ActorUnavailable,
    AskCycle,
    DeliveryError,
    DomainError,
    Draining,
    HandlerOverdue,
    MailboxFull,
)
from svc_actors.runtime.supervision import ActorAlert, AlertKind, RestartPolicy
from svc_actors.runtime.system import ActorSystem, KindStatistics, SystemStatistics

__all__ = [
    "Actor",
    "ActorAlert",
    "ActorCrashed",
    "ActorSystem",
    "ActorUnavailable",
    "AlertKind",
    "AskCycle",
    "DeliveryError",
    "DomainError",
    "Draining",
    "HandlerOverdue",
    "KindStatistics",
    "MailboxFull",
    "Ref",
    "RestartPolicy",
    "SystemStatistics",
]
