"""The catalog of segments that is kept on top of a metadata log, and the events that it is made of."""
