"""One parser of payloads, for the engine and for Spark."""
