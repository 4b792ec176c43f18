"""The places that blocks are committed to, and what commits them exactly once."""
