"""Configurations, the training loop, and run folders that survive.

Read downward: `presets` make a `config`, `run` opens a run folder (`record`) for it and calls
`train`, and `compare` does that for every configuration. Where runs are stored (`storage`), how
many processes train one (`ranks`) and how many runs are made (`launchers`) is behind interfaces of
their own. Nothing here loads torch before a network is trained or loaded.
"""
