"""The panel's own update: signed releases, prepared beside the one that runs, tried, and kept or given up."""
