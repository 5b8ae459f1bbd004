"""Traffic of machines: readings, periods, policies and their enforcement."""
