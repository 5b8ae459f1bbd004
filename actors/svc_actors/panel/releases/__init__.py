"""The panel's own updates: signed releases, prepared next to the running one, tried, and kept or rolled back."""
