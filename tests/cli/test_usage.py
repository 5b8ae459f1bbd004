"""The usage line of a command tells its arguments apart, by the names of what they are."""

from __future__ import annotations

from collections import Counter

import asyncclick as click
import pytest

from svc.cli.description import describe
from svc.cli.parameters import parameters
from svc.cli.services import ServiceKind, registry_of


@pytest.mark.parametrize("kind", ServiceKind)
def test_no_command_has_two_arguments_of_one_name(kind: ServiceKind) -> None:
    alike = []
    for operation in describe(registry_of(kind)).operations:
        arguments = [each for each in parameters(operation) if isinstance(each, click.Argument)]
        named = Counter(each.metavar for each in arguments if each.metavar is not None)  # others show their choices
        if any(count > 1 for count in named.values()):
            alike.append(operation.name)

    assert alike == []
