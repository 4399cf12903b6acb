"""Configurations, the training loop, and run folders that survive.

Read downward: `presets` make a `config`, `run` opens a run folder (`record`) for it and calls
`train`, and `compare` does that for every method and seed. Nothing here loads torch before a
network is trained or loaded.
"""
