"""Operations on networks, pools, addresses and security groups."""
