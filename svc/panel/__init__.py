"""The hosting panel's operations, by area. It shares registry and identity with the controller."""
