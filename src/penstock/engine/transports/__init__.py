"""Where blocks come from and go to: memory, queues, buffers."""
