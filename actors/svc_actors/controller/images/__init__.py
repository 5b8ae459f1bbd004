"""Images: catalogue, files, checksums, and the tasks that refresh and distribute them."""
