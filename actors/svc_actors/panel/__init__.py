"""The actors of the hosting panel, which hold its state: jobs, webhook endpoints, sites, certificates."""
