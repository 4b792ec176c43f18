"""`Consumer`: reads the entries of one group in order, fetches their batches, and acks."""
