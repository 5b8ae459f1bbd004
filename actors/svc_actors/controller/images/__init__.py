"""Images: catalogue, files, checksums, and what keeps them."""
