"""Sinks of several sinks."""
