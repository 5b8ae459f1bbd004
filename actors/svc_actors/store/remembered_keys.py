"""Idempotency keys that a service remembers outside of its database, which may lose them (`svc_actors.store.marks`).

Rejected: one bounded list for all callers. A caller with many orders displaced the keys of all others.
"""

from __future__ import annotations

from typing import Final, TypeAlias

MOST_KEYS: Final = 5_000
"""The most idempotency keys that are remembered, those of the last orders: some 400 KB in the file, which is written
each second."""
KEYS_FOR: Final = 24 * 3600.0
"""Seconds: as long as the database keeps an answer. The key is free afterwards, and must not be refused."""

Key: TypeAlias = tuple[str, str]
"""An idempotency key: its owner, and the key."""


class RememberedKeys:
    """Idempotency keys with the time at which each was used, by owner, so that an order does not count all of them."""

    def __init__(self) -> None:
        self._by_owner: dict[str, dict[str, float]] = {}
        self._count = 0

    def note(self, key: Key, at: float) -> None:
        self.forget(key)
        owner, name = key
        self._by_owner.setdefault(owner, {})[name] = at
        self._count += 1
        if self._count > MOST_KEYS:
            # Forget the oldest key of the owner who has the most keys; those of other owners stay.
            most = max(self._by_owner, key=lambda each: len(self._by_owner[each]))
            self.forget((most, next(iter(self._by_owner[most]))))

    def forget(self, key: Key) -> None:
        owner, name = key
        if self._by_owner.get(owner, {}).pop(name, None) is not None:
            self._count -= 1
            if not self._by_owner[owner]:
                del self._by_owner[owner]

    def since(self, start: float) -> list[tuple[Key, float]]:
        """The keys used since `start`, oldest first; older ones are forgotten."""
        known = [((owner, name), at) for owner, names in self._by_owner.items() for name, at in names.items()]
        for key, at in known:
            if at < start:
                self.forget(key)
        return sorted((each for each in known if each[1] >= start), key=lambda each: each[1])
