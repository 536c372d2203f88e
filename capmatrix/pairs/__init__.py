"""A target and its drafter together."""
