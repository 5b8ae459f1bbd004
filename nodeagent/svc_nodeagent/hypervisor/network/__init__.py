"""A machine's network on the host: taps, addresses, routes and rules, derived from records and applied together.

Why: docs/decisions/0033-guest-networks-on-the-host.md.
"""
