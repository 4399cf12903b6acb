"""What stands beside the layers in a table: the usual ones, and the usual ways to a cosine."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo import OptimizedModule
from torch._dynamo import config as dynamo_config
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import is_parametrized, remove_parametrizations

from cosnorm import fold
from cosnorm.nn import CosineConv2d, CosineLinear, PearsonConv2d, PearsonLinear
from cosnorm.ops import reference
from cosnorm.ops.spec import Geometry, Spec


class _Similarity(nn.Module):
    def __init__(self, cin: int, cout: int, centered: bool) -> None:
        super().__init__()
        self.weight = nn.Conv2d(cin, cout, 3, bias=False).weight
        self.centered = centered

    def unit(self) -> Tensor:
        w = self.weight
        if self.centered:
            w = w - w.mean((1, 2, 3), keepdim=True)
        return w / w.flatten(1).norm(dim=1).clamp(min=1e-12).view(-1, 1, 1, 1)


class OnesKernel(_Similarity):
    """Norms and means of the fields by a convolution with a kernel of ones."""

    def forward(self, x: Tensor) -> Tensor:
        ones = x.new_ones(1, *self.weight.shape[1:])
        square = F.conv2d(x * x, ones, padding=1)
        if self.centered:
            total = F.conv2d(x, ones, padding=1)
            square = square - total * total / self.weight[0].numel()
        norm = square.clamp(min=1e-12).sqrt()
        return F.relu(F.conv2d(x, self.unit(), padding=1) / norm)


class Unfold(_Similarity):
    """Every field written out as a column, then one matrix product."""

    def forward(self, x: Tensor) -> Tensor:
        columns = F.unfold(x, 3, padding=1)
        if self.centered:
            columns = columns - columns.mean(1, keepdim=True)
        columns = columns / columns.norm(dim=1, keepdim=True).clamp(min=1e-12)
        out = self.unit().flatten(1) @ columns
        return F.relu(out).unflatten(2, x.shape[2:])


class BareFormula(_Similarity):
    """The definition and no more: nothing is done about cancellation, constants or zeros."""

    def forward(self, x: Tensor) -> Tensor:
        count = self.weight[0].numel()
        wide = x.float()
        square = F.avg_pool2d(wide.square().sum(1, keepdim=True), 3, 1, 1) * 9
        if self.centered:
            total = F.avg_pool2d(wide.sum(1, keepdim=True), 3, 1, 1) * 9
            square = square - total * total / count
        rnorm = square.clamp(min=1e-12).rsqrt().to(x.dtype)
        return F.relu(F.conv2d(x, self.unit().to(x.dtype), padding=1) * rnorm)


class Formula(_Similarity):
    """The reference, traced through autograd: the formula with its guards, left to a compiler."""

    def forward(self, x: Tensor) -> Tensor:
        similarity = "pearson" if self.centered else "cosine"
        spec = Spec(similarity, "relu", 1.0, Geometry((1, 1), (1, 1), (1, 1), 1))
        return reference.cosine_conv(x, self.weight, None, None, spec)


class NormalizeLinear(nn.Module):
    """F.normalize on both sides."""

    def __init__(self, cin: int, cout: int, centered: bool) -> None:
        super().__init__()
        self.weight = nn.Linear(cin, cout, bias=False).weight
        self.centered = centered

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        if self.centered:
            x, w = x - x.mean(-1, keepdim=True), w - w.mean(-1, keepdim=True)
        return F.relu(F.linear(F.normalize(x, dim=-1), F.normalize(w, dim=-1)))


class BareFormulaLinear(NormalizeLinear):
    """As `BareFormula`."""

    def forward(self, x: Tensor) -> Tensor:
        w, wide = self.weight.float(), x.float()
        square = wide.square().sum(-1, keepdim=True)
        if self.centered:
            w = w - w.mean(-1, keepdim=True)
            square = square - wide.sum(-1, keepdim=True) ** 2 / w.shape[1]
        v = w / w.norm(dim=1, keepdim=True).clamp(min=1e-12)
        return F.relu(F.linear(x, v.to(x.dtype)) * square.clamp(min=1e-12).rsqrt().to(x.dtype))


class FormulaLinear(NormalizeLinear):
    """As `Formula`."""

    def forward(self, x: Tensor) -> Tensor:
        spec = Spec("pearson" if self.centered else "cosine", "relu")
        return reference.cosine_linear(x, self.weight, None, None, spec)


Factory = Callable[[int, int], nn.Module]


def _conv(cin: int, cout: int) -> nn.Conv2d:
    return nn.Conv2d(cin, cout, 3, padding=1, bias=False)


CONVOLUTIONS: dict[str, Factory] = {
    "conv+relu": lambda i, o: nn.Sequential(_conv(i, o), nn.ReLU()),
    "batch": lambda i, o: nn.Sequential(_conv(i, o), nn.BatchNorm2d(o), nn.ReLU()),
    "layer": lambda i, o: nn.Sequential(_conv(i, o), nn.GroupNorm(1, o, affine=False), nn.ReLU()),
    "weight": lambda i, o: nn.Sequential(weight_norm(_conv(i, o)), nn.ReLU()),
    "cosine": lambda i, o: CosineConv2d(i, o, 3, padding=1, activation="relu"),
    "pearson": lambda i, o: PearsonConv2d(i, o, 3, padding=1, activation="relu"),
    "cosine, ones kernel": lambda i, o: OnesKernel(i, o, False),
    "pearson, ones kernel": lambda i, o: OnesKernel(i, o, True),
    "cosine, unfold": lambda i, o: Unfold(i, o, False),
    "pearson, unfold": lambda i, o: Unfold(i, o, True),
    "cosine, formula": lambda i, o: Formula(i, o, False),
    "pearson, formula": lambda i, o: Formula(i, o, True),
    "cosine, bare formula": lambda i, o: BareFormula(i, o, False),
    "pearson, bare formula": lambda i, o: BareFormula(i, o, True),
}

LINEARS: dict[str, Factory] = {
    "linear+relu": lambda i, o: nn.Sequential(nn.Linear(i, o, bias=False), nn.ReLU()),
    "batch": lambda i, o: nn.Sequential(nn.Linear(i, o, bias=False), nn.BatchNorm1d(o), nn.ReLU()),
    "layer": lambda i, o: nn.Sequential(
        nn.Linear(i, o, bias=False), nn.LayerNorm(o, elementwise_affine=False), nn.ReLU()
    ),
    "weight": lambda i, o: nn.Sequential(weight_norm(nn.Linear(i, o, bias=False)), nn.ReLU()),
    "cosine": lambda i, o: CosineLinear(i, o, activation="relu"),
    "pearson": lambda i, o: PearsonLinear(i, o, activation="relu"),
    "cosine, normalize": lambda i, o: NormalizeLinear(i, o, False),
    "pearson, normalize": lambda i, o: NormalizeLinear(i, o, True),
    "cosine, formula": lambda i, o: FormulaLinear(i, o, False),
    "pearson, formula": lambda i, o: FormulaLinear(i, o, True),
    "cosine, bare formula": lambda i, o: BareFormulaLinear(i, o, False),
    "pearson, bare formula": lambda i, o: BareFormulaLinear(i, o, True),
}


def folded(module: nn.Module) -> nn.Module:
    """A module for inference, with whatever of it can be done beforehand."""
    if isinstance(module, OptimizedModule):
        return compiled(folded(module._orig_mod))
    module = nn.Sequential(module).eval()
    fold(module)
    layers = module[0]
    if isinstance(layers, nn.Sequential) and isinstance(layers[1], nn.BatchNorm2d | nn.BatchNorm1d):
        join = fuse_conv_bn_eval if isinstance(layers[0], nn.Conv2d) else fuse_linear_bn_eval
        return nn.Sequential(join(layers[0], layers[1]), *layers[2:])  # pyright: ignore
    for part in module.modules():
        if is_parametrized(part, "weight"):
            remove_parametrizations(part, "weight")
    return module


def compiled(module: nn.Module, mode: str = "default") -> nn.Module:
    """Compiled for its size alone, and not left uncompiled because many others were before it."""
    dynamo_config.recompile_limit = dynamo_config.accumulated_recompile_limit = 1000
    dynamo_config.fail_on_recompile_limit_hit = True
    return torch.compile(module, mode=mode, dynamic=False)  # pyright: ignore[reportReturnType]
