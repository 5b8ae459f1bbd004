"""The hosting panel: what it can do, area by area. It shares registry and identity with the controller."""
