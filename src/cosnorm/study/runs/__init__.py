"""Settings of a run, and the folder that holds what came of it.

Nothing here needs torch but checkpoints.
"""
