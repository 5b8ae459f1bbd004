"""The panel's core as a running service: its composition over one server, and its supervision."""
