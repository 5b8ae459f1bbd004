"""The panel's programs on this server: core, web tier, keeper, and the operator's commands."""
