"""Receivers and senders: memory, queues, buffers."""
