"""From stored rows to network input, in batches, on the device where the rows live.

A pipeline is a pure function of the rows and of random parameters drawn beforehand, so a training
step is a function of its seed. No step waits for the device or has a shape that depends on data:
all of it can be captured in a CUDA graph, with the parameters in a buffer that is refilled.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor


class Pipeline(Protocol):
    """What the training loop asks of a pipeline."""

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """Random parameters for n examples: float32 (n, p), p ≥ 0, on the generator's device."""
        ...

    def train(self, x: Tensor, params: Tensor) -> Tensor:
        """Stored rows and their parameters to float32 network input."""
        ...

    def eval(self, x: Tensor) -> Tensor:
        """Stored rows to float32 network input, nothing random."""
        ...

    def output_shape(self, sample_shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one network input for stored examples of `sample_shape`."""
        ...


@dataclass(frozen=True)
class UnitRange:
    """uint8 to [0, 1] by x/255; floats, dense or sparse, pass as they are."""

    def __call__(self) -> "UnitRange":
        """Itself: there is nothing to set. So `unit_range` and `unit_range()` both do."""
        return self

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        return torch.zeros(n, 0, device=generator.device)

    def train(self, x: Tensor, params: Tensor) -> Tensor:
        return self.eval(x)

    def eval(self, x: Tensor) -> Tensor:
        return x.float() / 255 if x.dtype == torch.uint8 else x

    def output_shape(self, sample_shape: tuple[int, ...]) -> tuple[int, ...]:
        return sample_shape


@dataclass(frozen=True)
class TFCifar:
    """The input pipeline of the TensorFlow CIFAR-10 tutorial.

    Training: a random crop; a left-right flip of every other image; brightness, x + b with
    b in ±63 of 255; contrast, (x − m)·f + m about the mean m of each channel, with f in
    0.2…1.8; standardisation, (x − mean) / max(std, 1/√N) over all N pixels and channels.
    Evaluation: the central crop, standardised. Nothing is clipped in between.

    Parameters are uniform in [0, 1): top, left, flip, brightness, contrast.

    Example:
        >>> pipeline, x = TFCifar(flip=False), torch.zeros(8, 3, 32, 32, dtype=torch.uint8)
        >>> pipeline.train(x, pipeline.draw(len(x), torch.Generator())).shape
        torch.Size([8, 3, 24, 24])
    """

    crop: int = 24
    flip: bool = True
    brightness: float = 63.0
    contrast: tuple[float, float] = (0.2, 1.8)

    def __call__(self, **changes: Any) -> "TFCifar":
        """The same pipeline with other settings, e.g. `tf_cifar(flip=False)` for digits."""
        return replace(self, **changes)

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        return torch.rand(n, 5, generator=generator, device=generator.device)

    def train(self, x: Tensor, params: Tensor) -> Tensor:
        top, left, flip, brightness, contrast = params.unbind(1)
        image = self._random_crop(x, top, left, flip).float()
        image += (self.brightness * (2 * brightness - 1))[:, None, None, None]
        low, high = self.contrast
        factor = (low + (high - low) * contrast)[:, None, None, None]
        middle = image.mean((2, 3), keepdim=True)
        return _standardise((image - middle) * factor + middle)

    def eval(self, x: Tensor) -> Tensor:
        _, height, width = self.output_shape(tuple(x.shape[1:]))
        top, left = (x.shape[2] - height) // 2, (x.shape[3] - width) // 2
        return _standardise(x[:, :, top : top + height, left : left + width].float())

    def output_shape(self, sample_shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(sample_shape) != 3 or min(sample_shape[1:]) < self.crop:
            raise ValueError(
                f"tf_cifar crops {self.crop} × {self.crop} from images (C, H, W) of at least that; "
                f"received {sample_shape}; use the pipeline unit_range (--pipeline unit_range), or "
                f"larger images (of a folder: --image-size {self.crop} or more)"
            )
        return (sample_shape[0], self.crop, self.crop)

    def _random_crop(self, x: Tensor, top: Tensor, left: Tensor, flip: Tensor) -> Tensor:
        n, channels, height, width = x.shape
        self.output_shape((channels, height, width))
        steps = torch.arange(self.crop, device=x.device)
        rows = _offset(top, height - self.crop) + steps
        columns = _offset(left, width - self.crop) + steps
        if self.flip:
            columns = torch.where((flip < 0.5)[:, None], columns.flip(1), columns)
        pixel = (rows[:, :, None] * width + columns[:, None, :]).flatten(1)[:, None]
        picked = x.flatten(2).gather(2, pixel.expand(-1, channels, -1))
        return picked.view(n, channels, self.crop, self.crop)


def _offset(uniform: Tensor, largest: int) -> Tensor:
    """Uniform in [0, 1) to each of 0…largest alike, as an int64 column."""
    return (uniform * (largest + 1)).long().clamp_(max=largest)[:, None]


def _standardise(image: Tensor) -> Tensor:
    centred = image - image.mean((1, 2, 3), keepdim=True)
    deviation = centred.square().mean((1, 2, 3), keepdim=True).sqrt()
    return centred / deviation.clamp_min(math.prod(image.shape[1:]) ** -0.5)


unit_range = UnitRange()
tf_cifar = TFCifar()
