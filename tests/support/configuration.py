"""A controller's configuration on ports of its own, beside whatever else runs on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from svc.controller.config import ControllerConfig
from tests.support.stack import free_port


def local_config(folder: Path, **changes: Any) -> ControllerConfig:
    config = ControllerConfig(
        data_dir=folder,
        public_host="127.0.0.1",
        bind_host="127.0.0.1",
        api_port=free_port(),
        gateway_port=free_port(),
        operations_port=free_port(),
    )
    return replace(config, **changes)
