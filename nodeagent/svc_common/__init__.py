"""Modules that both the services and the drivers of hosts use: errors of the API, durable files, vetted connections,
keys."""
