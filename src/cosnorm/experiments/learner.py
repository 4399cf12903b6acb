"""One training step, and the state that it moves on."""

import gc
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosnorm import models
from cosnorm.data import Dataset, Split, take
from cosnorm.experiments.average import Average
from cosnorm.experiments.batches import Batches, seed_of
from cosnorm.experiments.config import Config
from cosnorm.experiments.inputs import pipeline_for
from cosnorm.experiments.optimise import Update
from cosnorm.experiments.ranks import Alone, Ranks

_EVALUATION_ROWS = {"mlp": 10_000}  # at once, of networks whose hidden layers are small
_MOST_ROWS = 1000  # of the others


def network_for(
    config: Config, sample_shape: tuple[int, ...], classes: int, *, sparse: bool = False
) -> nn.Module:
    """The configuration's network for stored rows of `sample_shape`, initialised from the seed."""
    recipe = models.Recipe(
        method=config.method,
        bias=config.bias,
        affine=config.affine,
        scale=config.scale,
        scale_start=config.scale_start,
        bn_momentum=config.bn_momentum,
        bn_eps=config.bn_eps,
    )
    network = models.build(
        config.network,
        pipeline_for(config).output_shape(sample_shape),
        classes,
        recipe,
        width=config.width,
        channels=config.channels,
        pool=config.pool,
        sparse=sparse,
    )
    generator = torch.Generator().manual_seed(seed_of("initialisation", config.seed))
    models.initialise(network, config.init_std, generator)
    return network


class Learner:
    """A network with its data, update and average: what a step changes, and the step.

    The same object serves CPU and CUDA. Nothing in `step` waits for the device or depends on a
    value there, so on CUDA the whole of it is captured in one graph.
    """

    def __init__(self, config: Config, dataset: Dataset, ranks: Ranks | None = None) -> None:
        self.config, self.ranks = config, ranks or Alone()
        self.device = torch.device(config.device)
        self.sparse = dataset.kind == "sparse" and config.sparse
        self.pipeline = pipeline_for(config)
        network = network_for(
            config, dataset.sample_shape, len(dataset.classes), sparse=self.sparse
        )
        self.network = network.to(self.device)
        if self._images_on_cuda:
            self.network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.train_part, self.test_part = self._placed(dataset.train), self._placed(dataset.test)
        self.batches = Batches(
            self.train_part, self.pipeline, config.batch_size, config.seed, self.ranks
        )
        self._check_batch_norm(len(dataset.train))
        self.update = Update(self.network, config, in_parts=self.ranks.count == 1)
        self.average = (
            Average(self.network, config.ema_decay, config.ema_statistics)
            if config.ema_decay
            else None
        )
        self.loss = torch.zeros((), dtype=torch.float64, device=self.device)
        self.forward: Callable[[Tensor], Tensor] = self.network
        if config.compile:
            self.forward = torch.compile(self.network)
        self.network.train()

    def _check_batch_norm(self, rows: int) -> None:
        if self.config.method == "batch" and self.ranks.count > 1:
            raise ValueError(
                "the method batch normalises over a whole batch, which no rank has; got "
                f"{self.ranks.count} ranks: train it in one process"
            )
        if self.config.method == "batch" and self.batches.size < 2:
            raise ValueError(
                "the method batch needs at least 2 rows to normalise over, and the training part "
                f"has {rows}: give it more, or use another method"
            )

    @property
    def capturable(self) -> bool:
        """Whether a step can be one CUDA graph: rows that are sparse differ in size."""
        return self.device.type == "cuda" and not self.sparse

    @property
    def _images_on_cuda(self) -> bool:
        return self.device.type == "cuda" and self.config.network != "mlp"

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
        """Rows, augmentation, forward, loss, backward, mean over ranks, update, average."""
        x, y = self.batches.next()
        with self.autocast():
            logits = self.forward(self._laid_out(x))
        loss = F.cross_entropy(logits.float(), y)
        self.update.clear()
        loss.backward()
        loss = loss.detach()
        self.ranks.average(chain(self.update.gradients(), (loss,)))
        self.update.apply()
        if self.average is not None:
            self.average.update()
        self.loss += loss

    def wait(self) -> None:
        """Return when the steps begun so far are done: on CUDA the host runs ahead of them."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _laid_out(self, x: Tensor) -> Tensor:
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
        """Take over a state in place."""
        state = self.state()
        known, given = ({k: v.shape for k, v in each.items()} for each in (state, tensors))
        if odd := sorted({name for name, _ in known.items() ^ given.items()}):
            raise ValueError(f"the state does not fit the network: {', '.join(odd)}")
        for name, tensor in state.items():
            tensor.copy_(tensors[name])

    @torch.no_grad()
    def error(self, network: nn.Module) -> float:
        """Test error in percent of a network in evaluation mode; NaN where an output is NaN.

        The network comes back in the mode in which it came; no state of training is touched.
        """
        mode = network.training
        network.eval()
        wrong = torch.zeros((), dtype=torch.int64, device=self.device)
        finite = torch.ones((), dtype=torch.bool, device=self.device)
        for x, y in self._evaluation_batches():
            with self.autocast():
                logits = network(self._laid_out(self.pipeline.eval(x)))
            wrong += (logits.argmax(1) != y).sum()
            finite &= ~logits.isnan().any()
        network.train(mode)
        counts = torch.stack((wrong, (~finite).long()))
        self.ranks.total(counts)
        mistakes, odd = counts.tolist()
        return float("nan") if odd else 100 * mistakes / len(self.test_part)

    def _evaluation_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        rows = torch.arange(len(self.test_part), device=self.device)
        most = _EVALUATION_ROWS.get(self.config.network, _MOST_ROWS)
        for index in rows.split(most)[self.ranks.rank :: self.ranks.count]:
            yield take(self.test_part.x, index), self.test_part.y[index]


def captured(learner: Learner) -> Callable[[], None]:
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
