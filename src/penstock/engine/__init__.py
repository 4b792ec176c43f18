"""The contract of one block of work: receive, dead-letter, process, send, commit.

What lives here: `WorkBatch`, the block driver, dead letters, self-regulation, and the transports that stand on
the buffer and the queues.

May import: `buffer`, `queue`, `metalog`, and what lies below them.
"""
