"""Sites of type wordpress: their orders, and the job that creates them."""
