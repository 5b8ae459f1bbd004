"""What the panel drives on the server that it runs on: services, accounts, configuration. It knows no database."""
