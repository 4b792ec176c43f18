"""The places that blocks are committed to, behind one contract: `contract.Sink`."""
