"""Networks, pools, addresses and security groups, as records that machines and nodes share."""
