"""The benchmarks of `cosnorm.benchmarks`, which an installed wheel carries, run from a checkout."""
