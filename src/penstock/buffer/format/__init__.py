"""The bytes of a batch object: framing, Arrow streams, compression, and the trailer with its checksum."""
