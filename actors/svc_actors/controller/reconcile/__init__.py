"""The loops that compare records with the reports of hosts, and repair differences."""
