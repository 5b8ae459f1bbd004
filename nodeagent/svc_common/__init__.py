"""What services and drivers of hosts both stand on: errors of the API, durable files, vetted connections, keys."""
