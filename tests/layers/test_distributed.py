"""Data-parallel training over two processes on this machine: DDP and fully_shard."""

import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from cosnorm import nn

pytestmark = pytest.mark.slow
STEPS, RATE = 3, 0.5


def model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(
        nn.PearsonConv2d(3, 4, 3, padding=1, activation="relu"),
        nn.CosineConvTranspose2d(4, 4, 2, stride=2, bias=True),
        torch.nn.Flatten(),
        nn.CosineLinear(4 * 8 * 8, 5, learn_scale="per_output", scale=5.0),
    )


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(2)
    return torch.randn(4, 3, 4, 4), torch.randint(5, (4,))


def train(network, x, y) -> None:
    optimiser = torch.optim.SGD(network.parameters(), lr=RATE)
    for _ in range(STEPS):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(network(x), y).backward()
        optimiser.step()


def work(rank: int, kind: str, folder: str) -> None:
    torch.set_num_threads(1)
    place = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=2)
    network = model()
    if kind == "ddp":
        trained = DistributedDataParallel(network)
    else:
        mesh = init_device_mesh("cpu", (2,))
        for layer in network:
            if any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=mesh)
        trained = fully_shard(network, mesh=mesh)
    x, y = batch()
    train(trained, x[rank::2], y[rank::2])
    state = {
        name: p.full_tensor() if hasattr(p, "full_tensor") else p.detach()
        for name, p in network.named_parameters()
    }
    if rank == 0:
        torch.save(state, os.path.join(folder, "state.pt"))
    dist.barrier()
    dist.destroy_process_group()
    # At once: one process in hundreds was seen to abort in torch's threads while it was leaving.
    os._exit(0)


@pytest.mark.parametrize("kind", ["ddp", "fully_shard"])
def test_two_processes_train_as_one(kind, tmp_path):
    mp.start_processes(work, (kind, str(tmp_path)), nprocs=2, start_method="spawn")
    alone = model()
    train(alone, *batch())
    together = torch.load(tmp_path / "state.pt", weights_only=True)
    for name, parameter in alone.named_parameters():
        torch.testing.assert_close(together[name], parameter.detach(), rtol=1e-4, atol=1e-5)
    assert not torch.equal(next(alone.parameters()), next(model().parameters()))
