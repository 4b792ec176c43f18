"""Self-regulation: how many bytes a block may have, and when the next one is received."""
