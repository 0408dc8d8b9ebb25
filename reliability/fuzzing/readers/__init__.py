"""A target for every reader."""
