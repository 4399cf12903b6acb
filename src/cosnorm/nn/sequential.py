"""torch's container, for networks whose cosine convolutions follow one another."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from cosnorm.chain import Link, chain, serves

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Sequential(nn.Sequential):
    """`nn.Sequential` that runs neighbouring cosine or Pearson convolutions as one.

    Same arguments, state and results, to rounding. On a GPU, convolutions with fused ReLU that
    follow one another share the passes over what lies between them, folded ones too; everything
    else, and every layer with a hook, is called as torch calls it.

    Example:
        >>> Sequential(
        ...     CosineConv2d(3, 8, 3, activation="relu"), CosineConv2d(8, 8, 3, activation="relu")
        ... )(torch.rand(2, 3, 9, 9)).shape
        torch.Size([2, 8, 5, 5])
    """

    def forward(self, input: Any) -> Any:
        modules: list[Any] = list(self)
        while modules:
            ours = isinstance(input, Tensor) and not _has_any_global_hook()
            links = _leading(modules, input) if ours else []
            here, modules = modules[: len(links) or 1], modules[len(links) or 1 :]
            if len(links) > 1 and serves(input, links):
                input = chain(input, links)
            else:
                for module in here:
                    input = module(input)
        return input


def _leading(modules: Sequence[Any], input: Tensor) -> list[Link]:
    """As many modules from the first on as can be one chain."""
    links: list[Link] = []
    for module in modules:
        link = _link(module, input)
        if link is None or not link.joins(links[0] if links else link):
            break
        links.append(link)
    return links


def _link(module: Any, input: Tensor) -> Link | None:
    """What a module offers to a chain, if it is of a kind that does and nobody watches it."""
    offer = getattr(module, "chain_link", None)
    if offer is None or any(getattr(module, name) for name in _HOOKS):
        return None
    if "forward" in vars(module) or module._compiled_call_impl is not None:
        return None  # replaced by a wrapper, or compiled on its own
    return offer(input)
