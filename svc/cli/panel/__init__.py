"""The panel as programs of this server: core, web tier, keeper, and what an operator asks of them."""
