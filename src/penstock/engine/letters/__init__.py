"""Dead letters that are stored: the routes that store them, the places that they are read from, and their replay.

`docs/design/dead-letter-routes.md` has the order of writes of each route, `docs/design/dlq-replay.md` that of a replay.
"""
