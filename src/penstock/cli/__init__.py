"""The `penstock` command.

What lives here: one file for each command, and how answers look. The work itself is in the packages below.

May import: public names of every package.
"""
