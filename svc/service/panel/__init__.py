"""The panel's core as a running service: its parts put together over one server, and what looks after them."""
