"""The simulated host does every operation that a node is asked for."""

from __future__ import annotations

import ast
import inspect
from types import ModuleType
from typing import get_args

import pytest

from svc_nodeagent import dispatch, simulated
from svc_nodeagent.hypervisor import host, machines
from svc_nodeagent.protocol import NodeOperation

EVERY = {operation.__name__ for operation in get_args(get_args(NodeOperation)[0])}


def matched_in(*modules: ModuleType) -> set[str]:
    """The classes that the cases of the modules' `match` statements name."""
    nodes = (node for module in modules for node in ast.walk(ast.parse(inspect.getsource(module))))
    return {node.cls.id for node in nodes if isinstance(node, ast.MatchClass) and isinstance(node.cls, ast.Name)}


@pytest.mark.parametrize("modules", [(simulated,), (host, machines, dispatch)], ids=["simulated", "real"])
def test_every_operation_of_a_node_is_done_by_the_host(modules: tuple[ModuleType, ...]) -> None:
    assert EVERY - matched_in(*modules) == set()
