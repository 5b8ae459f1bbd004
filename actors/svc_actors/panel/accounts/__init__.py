"""What a customer may have and has: plans, allowances, use, and the suspension of all of it."""
