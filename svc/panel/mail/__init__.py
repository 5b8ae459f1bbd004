"""Mail that programs of sites send."""
