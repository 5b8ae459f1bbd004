"""Zones and their records as the panel keeps them, and the actor that has Knot serve them."""
