"""Sites of the type wordpress: what they were ordered with, and the job that makes them."""
