"""The docstrings of convolutions, of which there are twelve that differ in a few words."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

Layer = TypeVar("Layer", bound=type)

_CONV = """Stands in for nn.Conv{n}d: y = act(scale · {similarity} of receptive field and filter).

    Every receptive field has its own norm{mean}; whatever the padding mode puts around the input
    belongs to the fields. Parameters and their initialisation are nn.Conv{n}d's (a bias starts at
    zero and is off unless asked for), so its state_dict loads into a layer with the same `bias`.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups: as nn.Conv{n}d.
        bias, padding_mode, device, dtype: as nn.Conv{n}d, but no bias unless asked for.
{centered}        scale: fixed factor, or where a learned one starts (1 if None).
        learn_scale: True for one learned factor, "per_output" for one each.
        activation: None, "relu", "gelu", "silu" or "hardswish", fused.

    Example:
        >>> layer = {name}(3, 8, 3, stride=2, padding=1, activation="relu")
        >>> layer(torch.randn({input})).shape
        torch.Size([{output}])
    """
_CENTERED = "        centered: Pearson correlation instead of the cosine.\n"
_CONV_TRANSPOSE = """Stands in for nn.ConvTranspose{n}d: y = act(scale · {similarity}).

    The vectors of an output are the inputs that reach it and the taps by which they do; near
    borders and at strides above one their number differs from output to output. Parameters and
    their initialisation are nn.ConvTranspose{n}d's (a bias starts at zero and is off unless asked
    for), so its state_dict loads into a layer with the same `bias`.

    Args:
        in_channels, out_channels, kernel_size, stride, padding: as nn.ConvTranspose{n}d.
        output_padding, groups, dilation, padding_mode, device, dtype: as nn.ConvTranspose{n}d.
        bias: as nn.ConvTranspose{n}d, but none unless asked for.
{centered}        scale: fixed factor, or where a learned one starts (1 if None).
        learn_scale: True for one learned factor, "per_output" for one each.
        activation: None, "relu", "gelu", "silu" or "hardswish", fused.

    Example:
        >>> layer = {name}(3, 8, 2, stride=2)
        >>> layer(torch.randn({input})).shape
        torch.Size([{output}])
    """


def _documented(template: str, before: int, after: int) -> Callable[[Layer], Layer]:
    """Gives a layer its docstring; before, after: sizes of the example's input and output."""

    def filled(layer: Layer) -> Layer:
        name, n = layer.__name__, cast(Any, layer).dims
        pearson = name.startswith("Pearson")
        layer.__doc__ = template.format(
            name=name, n=n, similarity="correlation" if pearson else "cosine",
            mean=" and mean" if pearson else "", centered="" if pearson else _CENTERED,
            input=", ".join(map(str, (4, 3, *[before] * n))),
            output=", ".join(map(str, (4, 8, *[after] * n))),
        )  # fmt: skip
        return layer

    return filled


conv, conv_transpose = _documented(_CONV, 9, 5), _documented(_CONV_TRANSPOSE, 4, 8)
