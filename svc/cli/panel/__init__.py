"""The panel as programs of this server: core, web, and what composes them."""
