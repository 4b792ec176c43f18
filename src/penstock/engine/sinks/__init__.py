"""Sinks of several sinks, and routes for dead letters that are ready to use."""
