"""From evidence to the default-selection table, and from the table to an answer."""
