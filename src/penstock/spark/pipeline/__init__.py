"""`Pipeline`: from a buffer to a table, block by block, exactly once."""
