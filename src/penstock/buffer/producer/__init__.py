"""`Producer`: gathers records into batches, writes them, and enqueues them."""
