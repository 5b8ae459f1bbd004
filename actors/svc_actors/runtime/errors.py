"""The errors that an asker can get instead of a result.

    Exception
    ├── DomainError           raised by a handler: an answer, after which the actor lives on
    │   └── DeliveryError     raised by the runtime about one message
    │       ├── MailboxFull
    │       ├── Draining
    │       └── ActorCrashed  caused by any other exception of the handler, or by `HandlerOverdue`
    └── HandlerOverdue

Every `DeliveryError` but `ActorCrashed` promises that the handler was not started, so the same may be asked again.
"""

from __future__ import annotations

from svc_common.errors import DomainError


class DeliveryError(DomainError):
    """A message that was not answered by its actor. `actor` is the type's name and the key, as `Machine:m1`."""

    def __init__(self, actor: str, text: str) -> None:
        super().__init__(text)
        self.actor = actor


class MailboxFull(DeliveryError):  # noqa: N818 - named for what it says
    """The actor's mailbox is full. Nothing was queued; ask again later."""

    def __init__(self, actor: str, limit: int) -> None:
        super().__init__(
            actor, f"{actor} already has {limit} messages waiting; this one was not taken, try again later"
        )


class Draining(DeliveryError):  # noqa: N818 - named for what it says
    """The system is shutting down. The handler was not started; ask again once it runs."""

    def __init__(self, actor: str) -> None:
        super().__init__(actor, f"{actor} takes no messages, the service is shutting down; this one was not processed")


class ActorCrashed(DeliveryError):  # noqa: N818 - named for what it says
    """The handler failed with an exception that is no answer (`__cause__`), or was ended by the shutdown.

    Whether the change was made is not known. The next message gets a new instance.
    """

    def __init__(self, actor: str, method: str) -> None:
        super().__init__(actor, f"{actor} failed in {method}; check whether the change was made")


class HandlerOverdue(Exception):  # noqa: N818 - named for what it says
    """A handler ran past its deadline, in seconds, and was cancelled. Counts as a crash of its actor."""

    def __init__(self, actor: str, method: str, deadline: float) -> None:
        super().__init__(f"{actor} was still in {method} after its deadline of {deadline:g} seconds")


def answer_in(error: Exception) -> DomainError | None:
    """The answer that an error stands for: the error itself, or the first of several errors that a handler's own
    nursery wrapped in a group.

    None for a crash. A group is a crash as soon as it holds anything but answers.
    """
    if isinstance(error, DomainError):
        return error
    if not isinstance(error, ExceptionGroup):
        return None
    # Two tasks of a handler may fail at the same moment, each with an answer; then the first one is returned. If one of
    # them is a defect, no answer is returned, so that the defect is not hidden.
    answers = [answer_in(part) for part in error.exceptions]
    return None if None in answers else answers[0]
