"""The actor runtime: typed messages to supervised Trio tasks. It depends on Trio, and on nothing of the services."""

from svc_actors.runtime.actor import Actor, Ref
from svc_actors.runtime.errors import (
    ActorCrashed,
    DeliveryError,
    DomainError,
    Draining,
    HandlerOverdue,
    MailboxFull,
)
from svc_actors.runtime.system import ActorSystem, Crash, KindStatistics

__all__ = [
    "Actor",
    "ActorCrashed",
    "ActorSystem",
    "Crash",
    "DeliveryError",
    "DomainError",
    "Draining",
    "HandlerOverdue",
    "KindStatistics",
    "MailboxFull",
    "Ref",
]
