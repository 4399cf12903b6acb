"""An existing model in, a cosine model out; a cosine model in, one ready for inference out."""

from cosnorm.conversion.account import Account, Entry
from cosnorm.conversion.folding import fold
from cosnorm.conversion.heads import HEAD_SCALE
from cosnorm.conversion.layers import FEWEST_DEPTHWISE
from cosnorm.conversion.replacing import convert

__all__ = ["FEWEST_DEPTHWISE", "HEAD_SCALE", "Account", "Entry", "convert", "fold"]
