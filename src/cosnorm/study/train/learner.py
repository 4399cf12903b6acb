"""One training step, and the state that it moves on."""

import gc
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosnorm.methods import METHODS
from cosnorm.study import models
from cosnorm.study.data import Dataset, Split, take
from cosnorm.study.names import NETWORKS
from cosnorm.study.runs.config import Config
from cosnorm.study.runs.errors import ConfigError
from cosnorm.study.train.average import Average, copied
from cosnorm.study.train.batches import Batches, seed_of
from cosnorm.study.train.inputs import pipeline_for
from cosnorm.study.train.optimise import Update
from cosnorm.study.train.ranks import Alone, Ranks


def network_for(
    config: Config, sample_shape: tuple[int, ...], classes: int, *, sparse: bool = False
) -> nn.Module:
    """The configuration's network for stored rows of `sample_shape`, initialised from the seed."""
    shape, (recipe, sizes) = pipeline_for(config).output_shape(sample_shape), plan_of(config)
    network = models.build(config.network, shape, classes, recipe, **sizes, sparse=sparse)
    generator = torch.Generator().manual_seed(seed_of("initialisation", config.seed))
    models.initialise(network, config.init_std, generator)
    return network


def plan_of(config: Config) -> tuple[models.Recipe, dict[str, Any]]:
    """The layers of a configuration's network, and its sizes."""
    recipe = models.Recipe(
        method=config.method,
        bias=config.bias,
        affine=config.affine,
        scale=config.scale,
        scale_start=config.scale_start,
        bn_momentum=config.bn_momentum,
        bn_eps=config.bn_eps,
    )
    return recipe, {"width": config.width, "channels": config.channels, "pool": config.pool}


class Learner:
    """A network with its data, update and average: what a step changes, and the step.

    The same object serves CPU and CUDA. Nothing in `step` waits for the device or depends on a
    value there, so on CUDA the whole of it is captured in one graph.
    """

    def __init__(self, config: Config, dataset: Dataset, ranks: Ranks | None = None) -> None:
        self.config, self.ranks = config, ranks or Alone()
        self.device = torch.device(config.device)
        self.kind = NETWORKS[config.network]
        can_be = config.sparse and METHODS[config.method].sparse and self.kind.sparse
        self.sparse = dataset.kind == "sparse" and can_be
        self.pipeline = pipeline_for(config)
        network = network_for(
            config, dataset.sample_shape, len(dataset.classes), sparse=self.sparse
        )
        self.dtype = torch.float64 if config.precision == "fp64" else torch.float32
        self.network = network.to(self.device, self.dtype)
        if config.sync_batch_norm:
            self.network = self.ranks.synchronised(self.network)
        if self._images_on_cuda and not self.ranks.is_sharded:
            self.network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.train_part, self.test_part = self._placed(dataset.train), self._placed(dataset.test)
        self.batches = Batches(
            self.train_part, self.pipeline, config.batch_size, config.seed, self.ranks
        )
        self._check_batch(len(dataset.train))
        average = copied(self.network) if config.ema_decay else None
        self.ranks.lay_out(self.network)
        self.forward: Callable[[Tensor], Tensor] = self.ranks.together(self.network)
        self.update = Update(self.network, config, in_parts=self.ranks.count == 1)
        self.average = None
        if average is not None:
            self.ranks.lay_out(average)
            self.average = Average(average, self.network, config.ema_decay, config.ema_statistics)
        self.loss = torch.zeros((), dtype=torch.float64, device=self.device)
        if config.compile:
            self.forward = torch.compile(self.forward)
        self.network.train()

    def _check_batch(self, rows: int) -> None:
        method = METHODS[self.config.method]
        if not method.over_batch:
            return
        least = self.batches.size // self.ranks.count
        if self.ranks.count > 1 and least < 2 and not self.config.sync_batch_norm:
            raise ConfigError(
                f"the method {method.name} normalises over the rows that a process has of a batch, "
                f"at least 2; got {self.batches.size} rows for {self.ranks.count} processes: use "
                "fewer processes, a larger batch size or --sync-batch-norm"
            )
        if self.batches.size < 2:
            raise ConfigError(
                f"the method {method.name} needs at least 2 rows to normalise over, and the "
                f"training part has {rows}: give it more, or use another method"
            )

    @property
    def capturable(self) -> bool:
        """Whether a step can be one CUDA graph: not with rows that are sparse, and differ in size.

        Nor with several ranks: what they do together is left out of graphs.
        """
        return self.device.type == "cuda" and not self.sparse and self.ranks.count == 1

    @property
    def _images_on_cuda(self) -> bool:
        return self.device.type == "cuda" and self.kind.images

    def _placed(self, split: Split) -> Split:
        placed = split.to(self.device)
        if placed.x.layout == torch.sparse_csr and not self.sparse:
            return Split(placed.x.to_dense(), placed.y)
        return placed

    def autocast(self) -> torch.autocast:
        """bf16 where wanted. Cast weights are not stored: each is used once, and graphs may end."""
        lower = self.config.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=lower, cache_enabled=False)

    def step(self) -> None:
        """Rows, augmentation, forward, loss, backward with the mean over ranks, update, average."""
        x, y = self.batches.next()
        with self.autocast():
            logits = self.forward(self._laid_out(x))
        loss = F.cross_entropy(logits.to(self.dtype), y)
        if self.batches.weight != 1:
            loss = loss * self.batches.weight
        self.update.clear()
        loss.backward()
        self.update.apply()
        if self.average is not None:
            self.average.update()
        loss = loss.detach()
        self.ranks.total(loss)
        self.loss.add_(loss, alpha=1 / self.ranks.count)

    def wait(self) -> None:
        """Return when the steps begun so far are done: on CUDA the host runs ahead of them."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _laid_out(self, x: Tensor) -> Tensor:
        x = x.to(self.dtype)
        return x.to(memory_format=torch.channels_last) if self._images_on_cuda else x

    def state(self) -> dict[str, Tensor]:
        """Every tensor that a step reads and changes, live; the place in the data aside."""
        state = {f"network.{k}": v for k, v in self.network.state_dict().items()}
        state |= {f"optimizer.{k}": v for k, v in self.update.state().items()}
        if self.average is not None:
            state |= {f"average.{k}": v for k, v in self.average.network.state_dict().items()}
            state["average_count"] = self.average.count
        return state | {"loss": self.loss}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over a state in place, but for what the ranks hold in parts."""
        state, parts = self.state(), self.ranks.shards(self.state())
        state = {name: tensor for name, tensor in state.items() if name not in parts}
        tensors = {name: tensor for name, tensor in tensors.items() if name not in parts}
        known, given = ({k: v.shape for k, v in each.items()} for each in (state, tensors))
        if odd := sorted({name for name, _ in known.items() ^ given.items()}):
            raise ValueError(f"the state does not fit the network: {', '.join(odd)}")
        for name, tensor in state.items():
            tensor.copy_(tensors[name])

    @torch.no_grad()
    def error(self, network: nn.Module, part: Split) -> float:
        """Error in percent of a network in evaluation mode on `part`; NaN where an output is NaN.

        Every row is counted by one rank. The running statistics are those of the first; nothing
        that training reads is touched. The network comes back in the mode in which it came.
        """
        mode = network.training
        network.eval()
        self.ranks.share(network.buffers())
        wrong = torch.zeros((), dtype=torch.int64, device=self.device)
        finite = torch.ones((), dtype=torch.bool, device=self.device)
        for x, y in self._evaluation_batches(part):
            with self.autocast():
                logits = network(self._laid_out(self.pipeline.eval(x)))
            wrong += (logits.argmax(1) != y).sum()
            finite &= ~logits.isnan().any()
        network.train(mode)
        counts = torch.stack((wrong, (~finite).long()))
        self.ranks.total(counts)
        mistakes, odd = counts.tolist()
        return float("nan") if odd else 100 * mistakes / len(part)

    def training_sample(self) -> Split:
        """Training rows spread evenly over their part, no more of them than the test part has."""
        part = self.train_part
        pace = -(-len(part) // len(self.test_part))
        rows = torch.arange(0, len(part), pace, device=self.device)
        return Split(take(part.x, rows), part.y[rows])

    def _evaluation_batches(self, part: Split) -> Iterator[tuple[Tensor, Tensor]]:
        """This rank's rows, in as many parts as those of every other."""
        ranks = self.ranks
        most = -(-len(part) // ranks.count)
        mine = torch.arange(len(part), device=self.device).tensor_split(ranks.count)[ranks.rank]
        for index in mine.tensor_split(-(-most // self.kind.rows)):
            yield take(part.x, index), part.y[index]


class Steps(Protocol):
    """What has a step that can be captured: a learner, or several as one."""

    @property
    def batches(self) -> Any: ...

    @property
    def update(self) -> Update: ...

    def step(self) -> None: ...

    def state(self) -> dict[str, Tensor]: ...


def captured(learner: Steps) -> Callable[[], None]:
    """The learner's step as one CUDA graph; the state is as it was before.

    Warm-up steps let libraries choose their algorithms and allocate outside the capture, on the
    stream that is then captured, which is one for all runs of a process: libraries keep memory for
    every stream that they have met. Gradients are made in the graph's own memory and stay there;
    what runs between replays (evaluation, checkpoints) allocates elsewhere.
    """
    places = [*learner.state().values(), learner.batches.place]
    before = [tensor.clone() for tensor in places]
    side = _capture_stream(torch.cuda.current_device())
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            learner.batches.place.zero_()
            learner.step()
    torch.cuda.current_stream().wait_stream(side)
    learner.update.clear()
    gc.collect()  # what an earlier run left in cycles must not be freed during the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        learner.step()
    with torch.no_grad():
        for tensor, value in zip(places, before, strict=True):
            tensor.copy_(value)
    return graph.replay


@cache
def _capture_stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
