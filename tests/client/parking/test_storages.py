"""Tensors that were parked come back bit for bit, and what cannot move safely stays.

Each who asks for host memory for copies has its own, and what fails takes none.
Real torch, with the CPU in the GPU's place.
"""

from __future__ import annotations

import copy
import gc
import io
import itertools
import warnings
import weakref
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from support.torch_cpu import CpuAllocator as Cpu
from torch.utils.checkpoint import checkpoint

from jupyter_gpushare.client.adapters.parkers.allocator import CudaAllocator
from jupyter_gpushare.client.adapters.parkers.base import (
    ParkedDamaged,
    ParkFailed,
    ParkRefused,
    ResumeFailed,
)
from jupyter_gpushare.client.adapters.parkers.checksum import Checksums
from jupyter_gpushare.client.adapters.parkers.hostpool import HostPool
from jupyter_gpushare.client.adapters.parkers.survey import BLOCK, obstacles
from jupyter_gpushare.client.adapters.parkers.torch import TorchParker as Parker

Make = Callable[..., Parker]


@pytest.fixture
def cpu() -> Cpu:
    return Cpu()


@pytest.fixture
def parking(parker: Make, cpu: Cpu) -> Parker:
    return parker(cpu)


@pytest.fixture
def one(cpu: Cpu) -> torch.Tensor:
    with cpu.user():
        return torch.ones(1000)


class Net(torch.nn.Module):
    """Tied weights, a buffer, a norm, dropout."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.into = torch.nn.Linear(width, width)
        self.out = torch.nn.Linear(width, width)
        self.out.weight = self.into.weight  # tied
        self.norm = torch.nn.BatchNorm1d(width)
        self.drop = torch.nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.drop(torch.nn.functional.gelu(self.norm(self.into(x))))).softmax(-1)


def train(net: Net, optimizer: torch.optim.Optimizer, steps: int, x: torch.Tensor) -> list[float]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (net(x) * x).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def state(net: Net, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    tensors = list(net.state_dict().values())
    for one in optimizer.state.values():
        tensors += [value for value in one.values() if isinstance(value, torch.Tensor)]
    return [tensor.detach().clone() for tensor in tensors]


def held(pool: HostPool) -> int:
    """Bytes of host memory that it has, used or not."""
    return sum(one.numel() for one in (*pool._free, *pool._used))


def all_equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


class Obstacle(Enum):
    """What each obstacle says of itself."""

    NOT_RECONCILED = "PyTorch's allocator has given out"
    NOT_RESIZABLE = "is not PyTorch's to free"
    ALIASED = "belong to several storages"
    SHARED = "shared with other processes"
    CUDA_GRAPH = "a graph replays addresses"
    OWN_STREAM = "would come back on the default one"
    PROCESS_GROUP = "torch.distributed runs here"
    ALLOCATOR = "PyTorch uses the allocator"
    UNREADABLE = "cannot be looked into"


def requested(cpu: Cpu) -> int | None:
    figures = cpu.figures(cpu.devices()[0])
    assert figures is not None
    return figures.requested


def obstacles_of(parker: Parker) -> tuple[str, ...]:
    return obstacles(parker._survey(parker._walk()))


def kinds(parker: Parker) -> set[Obstacle]:
    said = obstacles_of(parker)
    found = [[one for one in Obstacle if one.value in words] for words in said]
    return {one for (one,) in found}


def test_training_goes_on_as_if_nothing_had_been(parker: Make) -> None:
    """AdamW's state, tied weights, buffers and the random state: the same losses to the bit."""

    def run(cpu: Cpu, between: Callable[[], object]) -> tuple[list[float], Any]:
        torch.default_generator.manual_seed(7)
        with cpu.user():
            net, x = Net(), torch.randn(16, 32)
            optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, amsgrad=True)
            losses = train(net, optimizer, 3, x)
            between()
            losses += train(net, optimizer, 3, x)
        return losses, state(net, optimizer)

    undisturbed = run(Cpu(), lambda: None)
    cpu = Cpu()
    parking = parker(cpu)
    done: list[Any] = []

    def park() -> None:
        with torch.utils._python_dispatch._disable_current_modes():
            done.append(parking.park())
            assert parking.is_parked
            assert requested(cpu) == 0
            parking.resume()

    losses, after = run(cpu, park)
    assert losses == undisturbed[0]
    assert all_equal(after, undisturbed[1])
    assert done[0] > 15 * BLOCK
    assert done[0] % BLOCK == 0


def test_the_graph_of_an_old_loss_still_works(cpu: Cpu, parking: Parker) -> None:
    """Most of what it has saved is held by C++ alone."""

    def build() -> tuple[Net, torch.Tensor, dict[str, Any]]:
        torch.default_generator.manual_seed(1)
        net, x = Net(), torch.randn(16, 32)
        net.drop.p = 0.0
        other = copy.deepcopy(net)
        loss = (net(x) * x).square().sum()
        (other(x) * x).square().sum().backward()
        return net, loss, {name: one.grad for name, one in other.named_parameters()}

    net, loss, before = cpu.hold(build)
    parking.park()
    parking.resume()
    loss.backward()
    for name, one in net.named_parameters():
        assert one.grad is not None
        assert torch.equal(one.grad, before[name])


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x.exp())
        ctx.kept = x.sin()
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0] * 2


class Untouchable(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise AssertionError("nobody may call this")


class Around(torch.Tensor):
    """A tensor around another one, as quantised, jagged and distributed tensors are."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, *_: Any, **__: Any) -> Any:
        raise AssertionError("nobody may call this")


def holders() -> dict[str, Any]:
    """Tensors, each kept in another way."""
    leaf = torch.linspace(0.1, 1, 100, requires_grad=True)
    modified = leaf.exp()
    in_place = modified.sin().sum()
    with torch.no_grad():
        modified.add_(1)  # unpacking what was saved would raise
    with torch.inference_mode():
        inference = torch.randn(13)
    with torch.autograd.graph.saved_tensors_hooks(lambda one: (1, one.clone()), lambda two: two[1]):
        moved = leaf.exp().sum()
    hooked = leaf.exp()
    hooked.retain_grad()
    hooked.sum().backward()
    closed_over = torch.full((7,), 2.0)
    changed = leaf.view(10, 10).clone()
    forbidden = changed.unbind()  # reading their grad_fn raises from now on
    changed.add_(1)
    return {
        "custom": Double.apply(leaf),
        "joined": torch.cat([leaf.exp(), leaf.sin()]).prod(),
        "in place": in_place,
        "stacked": [one.cos() for one in leaf.unbind()[:3]],
        "closure": lambda: closed_over.sum().item(),
        "storage": torch.randn(11).untyped_storage(),
        "forbidden": (changed, forbidden),
        "inference": inference,
        "subclass": torch.randn(17).as_subclass(Untouchable),
        "sparse": torch.eye(19).to_sparse(),
        "rows": torch.eye(23).to_sparse_csr(),
        "columns": torch.eye(24).to_sparse_csc(),
        "blocks": torch.eye(24).to_sparse_bsr((2, 2)),
        "column blocks": torch.eye(24).to_sparse_bsc((3, 3)),
        "moved": moved,
        "hooked": hooked,
        "again": checkpoint(
            lambda x: x.exp().sin(), leaf, use_reentrant=False, preserve_rng_state=False
        ),
        "node": leaf.exp().grad_fn,
        "views": leaf.detach().view(10, 10)[3:].t(),
    }


@pytest.mark.filterwarnings("ignore:Sparse")
def test_every_kind_of_holder_is_found(cpu: Cpu, parking: Parker) -> None:
    kept = cpu.hold(holders)

    def sums() -> list[float]:
        return [kept["joined"].item(), kept["closure"](), kept["sparse"].to_dense().sum().item()]

    assert obstacles_of(parking) == ()
    before = sums()
    parking.park()
    assert kept["storage"].nbytes() == 0
    parking.resume()
    assert sums() == before
    for name in ("custom", "joined", "moved", "again"):
        kept[name].sum().backward()
    with pytest.raises(RuntimeError, match="is a view and its base"):
        kept["forbidden"][1][0].grad_fn  # noqa: B018 - it is asked for to see it raise
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept["in place"].backward()  # as it would have without us


def test_a_tensor_around_another_has_nothing_of_its_own(cpu: Cpu, parking: Parker) -> None:
    with cpu.user():
        around = Around(torch.arange(50.0))
    values = around.inner.tolist()
    assert parking.park() > 0
    assert "<parked>" in repr(around.inner)
    parking.resume()
    assert around.inner.tolist() == values


def test_a_tensor_whose_memory_cannot_be_read_is_refused(cpu: Cpu, parking: Parker) -> None:
    """One of a mapped function, say: what it has cannot be moved."""
    seen: list[set[Obstacle]] = []

    def mapped(x: torch.Tensor) -> torch.Tensor:
        seen.append(kinds(parking))
        return x

    with cpu.user():
        kept = torch.ones(3, 2)
    torch.vmap(mapped)(kept)
    assert seen == [{Obstacle.UNREADABLE}]


def test_looking_calls_no_hook_of_the_users(cpu: Cpu, parking: Parker) -> None:
    called: list[str] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        called.append("pack")
        return tensor.clone()

    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        called.append("unpack")
        return tensor

    def build() -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return torch.randn(64, requires_grad=True).exp().sum()

    loss = cpu.hold(build)
    assert obstacles_of(parking) == ()
    assert called == ["pack"] * 2
    loss.backward()
    assert called[2:] == ["unpack"]


def test_what_only_cpp_knows_is_refused(cpu: Cpu, parking: Parker) -> None:
    """A module that TorchScript has loaded keeps its buffers to itself."""

    class Holder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("hidden", torch.randn(1000))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript says that it is old
        saved = io.BytesIO()
        torch.jit.save(torch.jit.script(Holder()), saved)
        saved.seek(0)
        loaded = torch.jit.load(saved)
    gc.collect()
    cpu.planted = 4000  # as the allocator would count it
    with cpu.user():
        x = torch.ones(10)
    with pytest.raises(ParkRefused, match="something that is not Python holds it") as caught:
        parking.park()
    assert Obstacle.NOT_RECONCILED.value in str(caught.value)
    assert not parking.is_parked
    assert x.sum() == 10
    assert loaded is not None


def a_graph() -> Any:
    """Without CUDA the class cannot be made: only its object's existence matters."""
    return object.__new__(type("Graph", (torch.cuda.CUDAGraph,), {"__new__": object.__new__}))


@pytest.mark.parametrize(
    ("use", "found"),
    [
        (torch.Tensor.numpy, {Obstacle.NOT_RESIZABLE}),
        (torch.from_dlpack, {Obstacle.NOT_RESIZABLE, Obstacle.ALIASED, Obstacle.NOT_RECONCILED}),
        (torch.Tensor.share_memory_, {Obstacle.SHARED}),
        (lambda _one: a_graph(), {Obstacle.CUDA_GRAPH}),
    ],
)
def test_what_has_its_address_too_is_refused(
    one: torch.Tensor, parking: Parker, use: Callable[[torch.Tensor], Any], found: set[Obstacle]
) -> None:
    user = use(one)
    assert kinds(parking) == found
    assert user is not None


def test_what_was_sent_to_another_process_is_refused(one: torch.Tensor, parking: Parker) -> None:
    """How torch notes what it has sent, whatever the device."""
    reductions = torch.multiprocessing.reductions
    reference = reductions.StorageWeakRef(one.untyped_storage())
    reductions.shared_cache["a handle of ours"] = reference
    try:
        assert kinds(parking) == {Obstacle.SHARED}
    finally:
        del reductions.shared_cache["a handle of ours"]
    assert kinds(parking) == set()


def test_a_process_group_is_refused(parking: Parker, tmp_path: Path) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meeting", world_size=1, rank=0
    )
    try:
        assert kinds(parking) == {Obstacle.PROCESS_GROUP}
    finally:
        torch.distributed.destroy_process_group()
    assert kinds(parking) == set()


@pytest.mark.parametrize(
    ("name", "value", "obstacle"),
    [
        ("mempools", 1, Obstacle.CUDA_GRAPH),
        ("recording", True, Obstacle.CUDA_GRAPH),
        ("streams", 1, Obstacle.OWN_STREAM),
        ("name", "pluggable", Obstacle.ALLOCATOR),
        ("counts", False, Obstacle.NOT_RECONCILED),
    ],
)
@pytest.mark.usefixtures("one")
def test_what_the_allocator_tells(
    cpu: Cpu, parking: Parker, name: str, value: Any, obstacle: Obstacle
) -> None:
    setattr(cpu, name, value)
    assert kinds(parking) == {obstacle}


def test_other_frameworks_are_refused(parker: Make, cpu: Cpu) -> None:
    parking = parker(cpu, others=lambda: ("CuPy",))
    with pytest.raises(ParkRefused, match="CuPy may use the GPU"):
        parking.park()


def test_what_is_parked_already(one: torch.Tensor, parking: Parker) -> None:
    needed = parking.bytes_to_park()
    assert parking.park() == needed
    with pytest.raises(ParkRefused, match="already"):
        parking.park()
    parking.resume()
    assert one.sum() == 1000


# -- any structure ----------------------------------------------------------------------------


@st.composite
def structures(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """Instructions: a new storage, or a view, a slice, a copy, a graph over an earlier tensor."""
    verbs = st.sampled_from(["new", "view", "slice", "alias", "clone", "graph", "grad", "empty"])
    return draw(
        st.lists(
            st.tuples(verbs, st.integers(0, 99), st.integers(1, 3000)), min_size=1, max_size=25
        )
    )


def build(instructions: list[tuple[str, int, int]]) -> list[torch.Tensor]:
    tensors = [torch.arange(40, dtype=torch.float64)]
    for verb, which, size in instructions:
        one = tensors[which % len(tensors)]
        flat = one.detach()
        if verb == "new":
            kind = [torch.float32, torch.uint8, torch.complex64, torch.bool][which % 4]
            tensors.append((torch.arange(size) % 251).to(kind))
        elif verb == "view":
            tensors.append(flat.flatten().view(-1, 1).expand(-1, 2))
        elif verb == "slice":
            tensors.append(flat.flatten()[size % 7 :: 2])
        elif verb == "alias":
            tensors.append(torch.nn.Parameter(flat, requires_grad=flat.is_floating_point()))
        elif verb == "clone":
            tensors.append(flat.clone())
        elif verb == "graph":
            leaf = torch.randn(size, requires_grad=True)
            tensors.append((leaf.exp() * leaf.sin()).sum())
        elif verb == "grad":
            leaf = torch.randn(size, requires_grad=True)
            leaf.square().sum().backward()
            tensors.append(leaf)
        else:
            tensors.append(torch.empty(0))
    return tensors


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    structures(), st.booleans(), st.sampled_from([512, 4096, 2**20]), st.sampled_from([0, 10**9])
)
def test_any_aliasing_survives(
    instructions: list[tuple[str, int, int]], exact: bool, chunk: int, keep: int
) -> None:
    cpu = Cpu(exact=exact)
    parking = Parker(torch, cpu, others=tuple, chunk=chunk, keep=keep)
    tensors = cpu.hold(lambda: build(instructions))
    values = [one.detach().tolist() for one in tensors]
    versions = [one._version for one in tensors]
    groups = [one.untyped_storage().data_ptr() for one in tensors]
    for _ in range(2):
        parked = parking.park()
        assert all(one.untyped_storage().nbytes() == 0 for one in tensors)
        assert held(parking.pool) <= max(parked, keep)
        parking.resume()
        assert [one.detach().tolist() for one in tensors] == values
        assert [one._version for one in tensors] == versions
    again = [one.untyped_storage().data_ptr() for one in tensors]
    same = [[one == other for other in groups] for one in groups]
    assert [[one == other for other in again] for one in again] == same
    for one in tensors:
        if one.grad_fn is not None:
            one.backward()


def test_the_host_never_holds_more_than_is_parked(parker: Make, cpu: Cpu) -> None:
    parking = parker(cpu, chunk=2**16, keep=2**17)
    with cpu.user():
        kept = [torch.ones(size) for size in (1, 100_000, 7, 50_000, 3)]
    for _ in range(2):
        assert held(parking.pool) <= parking.park()
        parking.resume()
        assert held(parking.pool) <= 2**17
        assert "forget_host_buffers" in cpu.calls
    assert sum(one.sum() for one in kept) == 150_011


# -- what goes wrong ----------------------------------------------------------------------------


class Trouble:
    """Lets the n-th resize to a size (or to nothing) of any storage fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.grow_left: float = float("inf")
        self.shrink_left: float = float("inf")
        self.error: BaseException = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        real = torch.UntypedStorage.resize_

        def resize_(storage: Any, size: int) -> Any:
            name = "grow_left" if size else "shrink_left"
            left = getattr(self, name) - 1
            setattr(self, name, left)
            if left < 0:
                raise self.error
            return real(storage, size)

        monkeypatch.setattr(torch.UntypedStorage, "resize_", resize_)


@pytest.fixture
def trouble(monkeypatch: pytest.MonkeyPatch) -> Trouble:
    return Trouble(monkeypatch)


class Kept:
    """A model under training, and how to see that it is unharmed."""

    def __init__(self, cpu: Cpu) -> None:
        with cpu.user():
            torch.default_generator.manual_seed(3)
            self.net, self.x = Net(), torch.randn(16, 32)
            self.optimizer = torch.optim.AdamW(self.net.parameters())
            train(self.net, self.optimizer, 2, self.x)
        self.before = [one.tolist() for one in state(self.net, self.optimizer)]

    def is_whole(self) -> bool:
        return [one.tolist() for one in state(self.net, self.optimizer)] == self.before


@pytest.fixture
def kept(cpu: Cpu) -> Kept:
    return Kept(cpu)


def test_no_room_at_resume_loses_nothing(
    cpu: Cpu, parking: Parker, kept: Kept, trouble: Trouble
) -> None:
    parking.park()
    for left in (0, 1, len(parking._parked) // 2, len(parking._parked) - 1):
        trouble.grow_left = left
        with pytest.raises(ResumeFailed, match="kept in host memory, complete") as caught:
            parking.resume()
        assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
        assert parking.is_parked
        assert requested(cpu) == 0  # whoever has the GPU now has room
    trouble.grow_left, trouble.error = 4, KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        parking.resume()
    assert parking.is_parked
    trouble.grow_left = float("inf")
    parking.resume()
    assert kept.is_whole()


@pytest.mark.parametrize("left", [0, 1, 10])
def test_broken_off_while_letting_go(
    parking: Parker, kept: Kept, trouble: Trouble, left: int
) -> None:
    trouble.shrink_left, trouble.error = left, RuntimeError("CUDA error: unknown error")
    with pytest.raises(ParkFailed, match="is as it was: CUDA error: unknown error"):
        parking.park()
    assert not parking.is_parked
    assert kept.is_whole()


def test_broken_off_and_no_way_back_keeps_the_copies(
    parking: Parker, kept: Kept, trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble.shrink_left, trouble.grow_left = 10, 3
    real = parking._free

    def free(copies: Any) -> None:
        trouble.shrink_left = float("inf")
        real(copies)

    monkeypatch.setattr(parking, "_free", free)
    with pytest.raises(ParkFailed, match="kept in host memory, complete"):
        parking.park()
    assert parking.is_parked
    trouble.grow_left = float("inf")
    parking.resume()
    assert kept.is_whole()


def test_no_host_memory_changes_nothing(parker: Make, cpu: Cpu, kept: Kept) -> None:
    parking = parker(cpu, chunk=4096)
    cpu.fail_host_after = 3
    with pytest.raises(ParkFailed, match="nothing has changed: CUDA error: out of host memory"):
        parking.park()
    assert not parking.is_parked
    assert held(parking.pool) <= 3 * 4096
    assert kept.is_whole()


def test_a_broken_driver_changes_nothing(
    cpu: Cpu,
    parking: Parker,
    kept: Kept,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:

    def broken() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nand more")

    monkeypatch.setattr(cpu, "empty_cache", broken)
    assert parking.trim() == 0
    assert "illegal memory access" in caplog.text
    with pytest.raises(ParkFailed, match="nothing has changed: CUDA error: an illegal memory ac"):
        parking.park()
    assert not parking.is_parked
    assert kept.is_whole()


def test_a_damaged_copy_is_told(one: torch.Tensor, parking: Parker) -> None:
    parking.park()
    (place,) = [copy for copy in parking._parked if copy.size == 4000]
    place.pieces[0][17] ^= 4
    with pytest.raises(ParkedDamaged, match="1 of its tensors are not what they were"):
        parking.resume()
    assert not parking.is_parked
    assert one.sum() != 1000


@given(st.binary(min_size=1, max_size=100_000), st.data())
@settings(deadline=None, max_examples=50)
def test_every_flipped_bit_changes_the_checksum(data: bytes, draw: st.DataObject) -> None:
    one = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    checksums = Checksums(torch)
    before = int(checksums.of(one))
    assert checksums.numbers([checksums.of(one.clone())]) == [before]
    place = draw.draw(st.integers(0, len(data) - 1))
    one[place] ^= 1 << draw.draw(st.integers(0, 7))
    assert int(checksums.of(one)) != before


# -- host memory -------------------------------------------------------------------------------


def buffer(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


@given(st.lists(st.lists(st.integers(0, 300), max_size=9), max_size=6), st.integers(0, 1000))
def test_everybody_gets_his_own_and_little_is_kept(rounds: list[list[int]], keep: int) -> None:
    pool = HostPool(buffer, keep=keep, chunk=64)
    for sizes in rounds:
        kept = held(pool)
        places = pool.take(sizes)
        assert [sum(piece.numel() for piece in pieces) for pieces in places] == sizes
        every = [piece for pieces in places for piece in pieces]
        spans = sorted((one.data_ptr(), one.data_ptr() + one.numel()) for one in every)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
        assert held(pool) <= max(sum(sizes), kept)
        pool.give_all_back()
        assert held(pool) <= keep


def test_a_failure_takes_nothing() -> None:
    left = [3]

    def allocate(size: int) -> torch.Tensor:
        left[0] -= 1
        if left[0] < 0:
            raise MemoryError("no more")
        return buffer(size)

    forgotten: list[bool] = []
    pool = HostPool(allocate, lambda: forgotten.append(True), keep=128, chunk=64)
    with pytest.raises(MemoryError):
        pool.take([1000])
    assert held(pool) == 128
    assert forgotten
    pool.take([100])
    assert held(pool) == 128
    pool.give_all_back()
    assert held(pool) == 128, "kept for the next one"


def test_torch_lets_go_of_host_memory_where_it_can() -> None:
    emptied: list[bool] = []
    can = SimpleNamespace(_C=SimpleNamespace(_host_emptyCache=lambda: emptied.append(True)))
    CudaAllocator(can).forget_host_buffers()
    assert emptied == [True]
    CudaAllocator(SimpleNamespace(_C=SimpleNamespace())).forget_host_buffers()  # an older torch


# -- the rest -----------------------------------------------------------------------------------


def test_parked_tensors_can_be_printed(cpu: Cpu, parking: Parker) -> None:
    """A front end shows variables at any time; torch would read memory that is not there."""
    with cpu.user():
        one = torch.nn.Parameter(torch.ones(3, 4))
        part, sparse = one[1:], torch.eye(3).to_sparse()
    real = torch._tensor_str._str
    parking.park()
    assert "<parked>, shape=(3, 4), dtype=float32" in repr(one)
    assert "<parked>" in repr(part)
    assert "<parked>" in repr(sparse)
    assert f"{torch.arange(2)}" == "tensor([0, 1])"
    parking.resume()
    assert torch._tensor_str._str is real
    assert repr(one.detach()[0]) == "tensor([1., 1., 1., 1.])"


@pytest.mark.parametrize("has_graph", [False, True])
def test_trim_collects_garbage_and_workspaces(cpu: Cpu, parking: Parker, has_graph: bool) -> None:
    """A graph may have their addresses, and would write there when it is played."""
    parking.resume()  # there is nothing

    class Cycle:
        def __init__(self) -> None:
            self.me, self.tensor = self, torch.ones(100_000)

    graph = a_graph() if has_graph else None
    gc.disable()
    try:
        with cpu.user():
            gone = weakref.ref(Cycle())
        cpu.figures(cpu.devices()[0])
        assert gone() is not None
        assert parking.trim() >= 400_000
        assert gone() is None
    finally:
        gc.enable()
    assert ("clear_workspaces" in cpu.calls) is not has_graph
    assert cpu.calls[-1] == "empty_cache"
    assert (graph is not None) is has_graph


def test_dead_proxies_do_no_harm(parking: Parker) -> None:
    class Proxy:
        @property
        def __class__(self) -> type:  # type: ignore[override]
            raise AssertionError("nobody may look here")

    proxy, plain = Proxy(), SimpleNamespace(next_functions=3)
    assert obstacles_of(parking) == ()
    assert type(proxy) is Proxy
    assert plain.next_functions == 3
