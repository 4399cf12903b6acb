"""Timings as ratios in one interleaved run, printed only after the ops have passed their checks."""
