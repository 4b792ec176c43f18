"""The `penstock` command.

What lives here: the words a person types, and how their answers look. The work itself is in the rooms below.

May import: every room below it.
"""
