"""Commands, each a few lines over the rooms."""
