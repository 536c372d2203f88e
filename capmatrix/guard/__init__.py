"""vLLM's own choices, and whether they contradict the table."""
