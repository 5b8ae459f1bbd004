"""The actor runtime: typed messages to supervised Trio tasks. It depends on Trio, and on nothing of the services."""

from svc_actors.runtime.actor import Actor, Ref
from svc_actors.runtime.errors import (
    ActorCrashed,
    DeliveryError,
    Draining,
    HandlerOverdue,
    MailboxFull,
)
from svc_actors.runtime.system import ActorSystem, Crash, KindStatistics
from svc_common.errors import DomainError

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
