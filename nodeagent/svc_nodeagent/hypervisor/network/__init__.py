"""A machine's network on the host: taps, addresses, routes and rules, derived from records and applied together."""
