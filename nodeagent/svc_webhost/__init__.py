"""The services, accounts and configuration that the panel manages on its own server. Nothing here uses a database."""
