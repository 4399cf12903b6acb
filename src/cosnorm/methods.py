"""The methods that are compared, one entry each. Loads no torch.

A new method is an entry here and its block (`cosnorm.nn.baselines`): the networks, the flags, the
learning rates and the figures follow from the entry. From outside the package:

    from cosnorm.methods import METHODS, Method
    METHODS.add(Method("mine", blocks="my_package.blocks:Mine", lr=1.0))
"""

from dataclasses import dataclass
from typing import Any

from cosnorm.registry import Registry, resolve


@dataclass(frozen=True)
class Look:
    """Colour on white, colour on black, and the dashes (on, off, …) in points; () is solid."""

    light: str
    dark: str
    dashes: tuple[float, ...]


@dataclass(frozen=True)
class Method:
    """A way to normalise, or not to.

    blocks: "module:Prefix" of its layers: PrefixLinear, PrefixConv1d, PrefixConv2d, PrefixConv3d.
        They take torch's arguments, then `scale`, `learn_scale`, `activation`, and `affine` where
        the method has it. Only those that a network uses need be there.
    lr: its learning rate with plain SGD.
    affine: whether its blocks take `affine`, a learned gain and shift for each output.
    scaled: whether the last layer's values are bounded, so that softmax wants a scale.
    over_batch: whether it normalises over the rows of a batch.
    sparse: whether `cosnorm.nn.sparse.SparseLinear` serves it.
    in_paper: whether the paper's tables have it.
    look: its curve in figures; None for one that is free.
    """

    name: str
    blocks: str
    lr: float
    affine: bool = False
    scaled: bool = True
    over_batch: bool = False
    sparse: bool = False
    in_paper: bool = False
    look: Look | None = None

    def block(self, kind: str) -> Any:
        """The class of its layers of a kind: "Linear", "Conv1d", "Conv2d" or "Conv3d"."""
        try:
            return resolve(self.blocks + kind)
        except AttributeError:
            raise ValueError(
                f"the method {self.name} has no {self.blocks.replace(':', '.')}{kind}: write it, "
                "or use a network without it"
            ) from None


# Colours that colour-blind readers can tell apart (Okabe and Ito's set, darker where it has to be).
METHODS: Registry[Method] = Registry(
    "method",
    (
        Method(
            "pearson", "cosnorm.nn:Pearson", 10.0, sparse=True, in_paper=True,
            look=Look("#0072B2", "#4DB1EE", ()),
        ),
        Method(
            "cosine", "cosnorm.nn:Cosine", 10.0, sparse=True, in_paper=True,
            look=Look("#D55E00", "#FF8A3D", (6, 2)),
        ),
        Method(
            "batch", "cosnorm.nn:BatchNorm", 1.0,
            affine=True, over_batch=True, sparse=True, in_paper=True,
            look=Look("#009E73", "#2FCF9F", (1.5, 1.5)),
        ),
        Method(
            "weight", "cosnorm.nn:WeightNorm", 1.0, affine=True, sparse=True, in_paper=True,
            look=Look("#B5568D", "#E69AC6", (6, 2, 1.5, 2)),
        ),
        Method(
            "layer", "cosnorm.nn:LayerNorm", 1.0, affine=True, sparse=True, in_paper=True,
            look=Look("#B98200", "#F2C14E", (3, 1.5)),
        ),
        Method(
            "none", "cosnorm.nn:Plain", 0.1, scaled=False, sparse=True,
            look=Look("#5F6670", "#A9B1BC", (6, 2, 1.5, 2, 1.5, 2)),
        ),
        Method(
            "group", "cosnorm.nn:GroupNorm", 0.3, affine=True, sparse=True,
            look=Look("#5B3FA8", "#B49BFF", (10, 2)),
        ),
        Method(
            "rms", "cosnorm.nn:RMSNorm", 0.3, affine=True, sparse=True,
            look=Look("#7A4B1E", "#D2A679", (4, 1.5, 1.5, 1.5)),
        ),
    ),
)  # fmt: skip
"""The methods that can be compared, for `--methods`."""

PAPER_METHODS = tuple(name for name, method in METHODS.items() if method.in_paper)
STUDIED = (*PAPER_METHODS, "none")  # what the paper's claims speak of


def with_affine() -> list[str]:
    """The methods whose blocks take `affine`."""
    return [name for name, method in METHODS.items() if method.affine]


def check_affine(method: str, affine: bool) -> None:
    """Refuse `affine` with a method whose blocks do not take it."""
    if affine and not METHODS.named(method).affine:
        raise ValueError(
            f"affine belongs to the methods {', '.join(with_affine())}; got method {method!r}: "
            "use learn_scale='per_output', bias=True or both"
        )
