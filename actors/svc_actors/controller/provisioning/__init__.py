"""Services: what billing systems sell, and the machines that follow them."""
