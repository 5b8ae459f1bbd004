"""Mail of sites, on the host: what runs as a site hands in a message."""
