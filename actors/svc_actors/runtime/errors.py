"""The errors that an asker can get instead of a result.

A `DomainError` is raised by a handler and is an answer: the asker gets it, the actor lives on. A `DeliveryError` is
raised by the runtime about one message. It is a `DomainError` too, so an actor whose ask to another actor fails passes
that on as its own answer instead of crashing along with it.

Every `DeliveryError` but `ActorCrashed` promises that the handler was not started, so the same may be asked again.
"""

from __future__ import annotations

from collections.abc import Sequence


class DomainError(Exception):
    """An error that is an answer: the asker gets it, and the actor lives on. Any other exception is a crash."""


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


class ActorUnavailable(DeliveryError):  # noqa: N818 - named for what it says
    """The actor crashed too often and rests for a cool-down; it is tried again in `retry_after` seconds."""

    def __init__(self, actor: str, retry_after: float) -> None:
        super().__init__(
            actor, f"{actor} failed repeatedly; this message was not processed, try again in {retry_after:.0f} seconds"
        )
        self.retry_after = retry_after


class Draining(DeliveryError):  # noqa: N818 - named for what it says
    """The system is shutting down. The handler was not started; ask again once it runs."""

    def __init__(self, actor: str) -> None:
        super().__init__(actor, f"{actor} takes no messages, the service is shutting down; this one was not processed")


class AskCycle(DeliveryError):  # noqa: N818 - named for what it says
    """The actor asked waits, directly or through others, for the actor that asks: neither could ever answer."""

    def __init__(self, actor: str, path: Sequence[str]) -> None:
        super().__init__(
            actor,
            f"{actor} cannot be asked here, because each of these waits for the next: {' -> '.join(path)};"
            " this message was not sent, use tell or let the other side report back",
        )
        self.path = tuple(path)


class ActorCrashed(DeliveryError):  # noqa: N818 - named for what it says
    """The handler failed with an exception that is no answer (`__cause__`), or was ended by the shutdown.

    Whether the change was made is not known. The actor is loaded again before its next message.
    """

    def __init__(self, actor: str, method: str) -> None:
        super().__init__(actor, f"{actor} failed in {method}; whether the change was made must be looked up")


class HandlerOverdue(Exception):  # noqa: N818 - named for what it says
    """A handler ran past its deadline, in seconds, and was cancelled. Counts as a crash of its actor."""

    def __init__(self, actor: str, method: str, deadline: float) -> None:
        super().__init__(f"{actor} was still in {method} after its deadline of {deadline:g} seconds")


def answer_in(error: Exception) -> DomainError | None:
    """The answer that an error is: itself, or the first of those that a handler's own nursery wrapped in a group.

    None for a crash. A group is a crash as soon as it holds anything but answers.
    """
    if isinstance(error, DomainError):
        return error
    if not isinstance(error, ExceptionGroup):
        return None
    # Two tasks of a handler may fail at the same moment, each with an answer; the first is as good as any. A defect
    # among them must not be hidden by an answer.
    answers = [answer_in(part) for part in error.exceptions]
    return None if None in answers else answers[0]
