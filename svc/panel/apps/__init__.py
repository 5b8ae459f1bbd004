"""Applications of sites: their configuration, deployments and deploy keys."""
