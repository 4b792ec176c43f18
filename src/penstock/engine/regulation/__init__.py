"""Self-regulation: how much a block may hold, and when the next one may come."""
