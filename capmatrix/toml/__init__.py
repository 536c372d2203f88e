"""TOML files read with the line of every key, and written."""
