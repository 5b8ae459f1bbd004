"""Consoles: the relay between a browser's websocket and a guest's screen or serial line, through its node."""

from svc_console.routes import Consoles, Statistics, add_console_routes

__all__ = ["Consoles", "Statistics", "add_console_routes"]
