"""Every op in plain, differentiable torch: the oracle and the fallback."""

from cosnorm.ops.reference.conv import cosine_conv, field_stats, slices
from cosnorm.ops.reference.conv_transpose import cosine_conv_transpose
from cosnorm.ops.reference.linear import cosine_linear, row_stats
from cosnorm.ops.reference.numerics import (
    AUTOCAST_DEVICES,
    CONVOLUTION,
    Unit,
    autocasting,
    centred_norm,
    channelwise,
    compute_dtype,
    finish,
    full_precision,
    into_cosine,
    inverse_norm,
    like_scale,
    moments,
    reciprocal,
    stats_dtype,
    unit_weight,
    weight_stats,
    with_one,
    without_tf32,
)

__all__ = [
    "AUTOCAST_DEVICES",
    "CONVOLUTION",
    "Unit",
    "autocasting",
    "centred_norm",
    "channelwise",
    "compute_dtype",
    "cosine_conv",
    "cosine_conv_transpose",
    "cosine_linear",
    "field_stats",
    "finish",
    "full_precision",
    "into_cosine",
    "inverse_norm",
    "like_scale",
    "moments",
    "reciprocal",
    "row_stats",
    "slices",
    "stats_dtype",
    "unit_weight",
    "weight_stats",
    "with_one",
    "without_tf32",
]
