"""Services: the products that billing systems sell, and the machines that belong to them."""
