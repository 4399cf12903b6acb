"""Triton: the four passes of a layer around its product.

    prepare     statistics of the input's channels | unit weights
    finish      1/|x| and μx of the fields, y = act(gain · scale · r_x (z - μx Σv)), in place
    start_grad  g = d·r_x, s = r_x² Σ_k d·c | unit weights again
    end_grad    dx = dx₀ - x·boxᵀ(s) + boxᵀ(s·μx) | projection of the weights' gradient

Left of the bar are programs over positions, right of it programs over units, in one launch.

A tile is BP positions by BC channels of a group, which a program walks through in steps. LANES: of
many small groups, a tile is BP positions by BC groups, and a step takes the next channel of each.
Statistics of a tile have BC columns then, and one otherwise, so that one text serves both.

LAST: channels are dense in memory, else positions are. RAW: the product is taken with w as it is,
and r_w is applied where r_x is. POINT: fields are single positions, so that the statistics of the
channels are those of the fields. THIN: groups of one channel, as many maps as there are channels:
a window's columns are summed up first (`prepare`, `spread`), then its rows, as a window that is one
column wide. TAPS: a window's taps are a dimension of a tile, so that it costs the latency of one
load; at 0 they are walked through. SINGLE: groups of one output. ALIGN divides the distance between
rows and what a program begins with in one; no other size is known when compiling. lift: what unit
weights are multiplied by, see
`reference.numerics.lift`. LEAN: a POINT whose y is c times a number. Since
Σ_k d·c = ⟨dx₀, x-μ⟩ + (1-μ) Σ_k g·v_b, backward needs no c, which y itself cannot stand in for:
callers may change it in place.

Statistics are float32, in one arena: 1/|x| and for Pearson μx of the fields (`maps` of each), then
1/|w| and μw of the units. From `shift` on, what lives for one direction only: in forward Σv of the
units, then Σx², for Pearson M2 and m, of the channels at each position; in backward s. THIN ones
have such maps apart from the arena, which is held for backward.
"""

from cosnorm.ops.triton.kernels.backward import end_grad, spread, start_grad
from cosnorm.ops.triton.kernels.early import end_early, normalise
from cosnorm.ops.triton.kernels.forward import finish, prepare

__all__ = ["end_early", "end_grad", "finish", "normalise", "prepare", "spread", "start_grad"]
