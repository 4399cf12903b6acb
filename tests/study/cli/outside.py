"""What somebody else may add: a method, a data set, a network, an augmentation and a metric.

Nothing here is part of the package. The module is named in COSNORM_EXTENSIONS, or imported.
"""

import torch
import torch.nn.functional as F
from torch import nn

from cosnorm import study
from cosnorm.methods import METHODS, Look, Method
from cosnorm.nn import conv2d, linear
from cosnorm.study.data import Dataset, Split


class _Rms:
    """Pre-activations over their root mean square, a scale, and ReLU where wanted."""

    def finished(self, z):
        z = z / (z.square().mean(1, keepdim=True) + 1e-5).sqrt()
        z = z if self.scale is None else z * self.scale
        return z.relu() if self.activation == "relu" else z

    def keep(self, scale, learn_scale, activation):
        start = torch.tensor([1.0 if scale is None else scale])
        self.scale = nn.Parameter(start) if learn_scale else scale
        self.activation = activation


class RmsLinear(_Rms, nn.Linear):
    def __init__(self, *args, scale=None, learn_scale=False, activation=None):
        super().__init__(*args)
        self.keep(scale, learn_scale, activation)

    def forward(self, input):
        return self.finished(F.linear(input, self.weight, self.bias))


class RmsConv2d(_Rms, nn.Conv2d):
    def __init__(self, *args, scale=None, learn_scale=False, activation=None):
        super().__init__(*args)
        self.keep(scale, learn_scale, activation)

    def forward(self, input):
        return self.finished(self._conv_forward(input, self.weight, self.bias))


METHODS.add(Method("mine", "outside:Rms", 0.5, look=Look("#12ab34", "#ab1234", (2, 2))))


def bars(root):
    """Images with a bright row: the class says which."""
    y = torch.arange(90) % 3
    x = torch.randint(0, 90, (90, 1, 6, 6), generator=torch.Generator().manual_seed(0))
    x[torch.arange(90), 0, 2 * y] += 160
    x = x.to(torch.uint8)
    parts = Split(x[:60], y[:60]), Split(x[60:], y[60:])
    return Dataset("bars", *parts, ("top", "middle", "bottom"), "image")


study.DATASETS.add(study.DatasetEntry("bars", bars, "Images with a bright row"))


def tiny(shape, classes, recipe, *, width=8):
    """One convolution and one layer."""
    size = width * shape[1] * shape[2]
    return nn.Sequential(
        conv2d(recipe.method, shape[0], width, 3, padding=1, **recipe.hidden),
        nn.Flatten(),
        linear(recipe.method, size, classes, **recipe.last),
    )


study.NETWORKS.add(study.NetworkEntry("tiny", "outside:tiny", images=True, settings={"width": 4}))


class Shifted:
    """Columns moved round by a random number of places."""

    def draw(self, n, generator):
        return torch.rand(n, 1, generator=generator, device=generator.device)

    def train(self, x, params):
        width = x.shape[-1]
        columns = (torch.arange(width) + (params * width).long()) % width
        return self.eval(x).gather(3, columns[:, None, None].expand(x.shape))

    def eval(self, x):
        return x.float() / 255

    def output_shape(self, sample_shape):
        return sample_shape


study.PIPELINES.add(study.PipelineEntry("shifted", Shifted))


def largest_weight(learner):
    return max(float(p.abs().max()) for p in learner.network.parameters())


study.METRICS.add(
    study.MetricEntry("largest_weight", "largest weight of any layer", measure=largest_weight)
)
