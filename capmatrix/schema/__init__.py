"""JSON schemas of the files that people write and of those that runs leave, made from the tables that read them."""
