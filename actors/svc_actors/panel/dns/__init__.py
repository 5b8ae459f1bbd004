"""DNS zones and their records as the panel keeps them, and the actor that makes Knot serve them."""
