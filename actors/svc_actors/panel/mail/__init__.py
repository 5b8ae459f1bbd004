"""Mail of sites: taken from their programs within limits, signed, and delivered to the relay."""
