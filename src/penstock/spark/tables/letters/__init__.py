"""Dead letters that are in a table: reading them without Spark, and sending them into a buffer again, each once.

The order of the steps of a replay, and what a kill after each leaves, is in `docs/design/dlq-replay.md`.
"""
