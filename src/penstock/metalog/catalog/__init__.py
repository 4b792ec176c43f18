"""The catalog of log segments that is kept on top of a metadata log, and the events it reads."""
