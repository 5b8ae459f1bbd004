"""What a customer may have and what they have: plans, allowances, use, and the suspension of accounts."""
