"""What machines send and receive: readings, periods, policies and their enforcement."""
