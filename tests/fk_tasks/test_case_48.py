"""Case 48: constant data ran faster than real data, because it costs less power (rocBLAS#1486, convnet-benchmarks#71).

The inputs of every workload that is measured vary: along rows, along columns, and from seed to seed.
"""

import dataclasses

import pytest
import torch

from fk_plugin import registry

# The generators treat sizes alike, so small ones tell as much; the vocabulary decides what logits look like and stays.
LARGEST = {"tokens": 8, "rows": 64, "experts": 8, "n": 128, "k": 256, "hidden": 512, "intermediate": 512}
SEEDS = (0, 1, 2, 12345)
# Weights of a norm lie around one and are rounded to 8 bits: a few hundred values at most.
LEAST_DISTINCT = 20
# Fewer elements than this are options by row, such as top_p, which users choose from a few values.
OPTIONS = 100
# Not data: what they hold follows from a model's configuration.
TABLES = ("cos_sin_cache",)


def _small(workload):
    axes = {name: min(size, LARGEST.get(name, size)) for name, size in workload.axes.items()}
    return dataclasses.replace(workload, axes=axes)


def _cases():
    for task in registry.tasks().values():
        seen = set()
        for workload in map(_small, task.workloads):
            key = (tuple(sorted(workload.axes.items())), workload.dtype, workload.layout)
            if key not in seen:
                seen.add(key)
                yield pytest.param(task, workload, id=f"{task.name}-{workload.name}")


def _floating(task, workload, seed):
    """The floating-point arguments by name."""
    names = [a.name for a in torch._C.parse_schema(f"fk::{task.overloads[0].schema}").arguments]
    made = zip(names, task.make_inputs(workload, "cpu", seed), strict=False)  # trailing defaults may be left out
    return {
        name: value
        for name, value in made
        if isinstance(value, torch.Tensor) and value.is_floating_point() and name not in TABLES
    }


def _assert_realistic(values, name):
    flat = values.double().flatten()
    assert bool(flat.isfinite().all()), f"{name} has values that are not finite"
    assert float((flat == 0).double().mean()) < 0.05, f"{name} is mostly zero"
    if flat.numel() < OPTIONS:
        return
    assert flat.unique().numel() >= LEAST_DISTINCT, f"{name} takes few values"
    _, counts = flat.unique(return_counts=True)
    assert int(counts.max()) < flat.numel() / 4, f"{name} is mostly one value"
    for axis in range(values.dim()):
        if values.shape[axis] > 1:
            spread = values.double().std(dim=axis)
            assert float((spread == 0).double().mean()) < 0.05, f"{name} is constant along axis {axis}"


@pytest.mark.parametrize(("task", "workload"), list(_cases()))
def test_case_48_inputs_are_realistic(task, workload, one_rank):
    floating = _floating(task, workload, SEEDS[0])
    assert floating, "a task without values has nothing to compute"
    for name, values in floating.items():
        _assert_realistic(values, name)


@pytest.mark.parametrize(("task", "workload"), list(_cases()))
def test_case_48_no_two_seeds_are_equal(task, workload, one_rank):
    made = [_floating(task, workload, seed) for seed in SEEDS]
    for i, first in enumerate(made):
        for second in made[i + 1 :]:
            assert not all(torch.equal(first[name], second[name]) for name in first)
            for name in first:
                if first[name].numel() < OPTIONS:
                    continue
                same = float((first[name] == second[name]).double().mean())
                assert same < 0.2, f"{name}: {same:.0%} of elements do not follow the seed"
