"""store_kv_cache: where rows go, and where nothing may go."""

import pytest
import torch

from fk_plugin import registry

TASK = registry.task("store_kv_cache")


def _slow(key, value, key_cache, value_cache, slot_mapping):
    """The contract, one element row at a time."""
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot < 0:
            continue
        for new, cache in ((key, key_cache), (value, value_cache)):
            place = cache[slot] if cache.dim() == 3 else cache[slot // cache.shape[1]][slot % cache.shape[1]]
            place.copy_(new[token])


@pytest.mark.parametrize("workload", TASK.edge_workloads, ids=lambda w: w.name)
def test_reference_moves_the_right_rows(workload):
    args, again = (TASK.make_inputs(workload, "cpu", 0) for _ in range(2))
    TASK.reference(*args)
    _slow(*again)
    for ours, theirs in zip(args, again, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["padded", "all-padded", "flat-cache"])
def test_padded_rows_write_nowhere(edge, name):
    _, (key, value, key_cache, value_cache, slots) = edge("store_kv_cache", name)
    before = key_cache.clone(), value_cache.clone()
    TASK.reference(key, value, key_cache, value_cache, slots)
    for old, cache in zip(before, (key_cache, value_cache), strict=True):
        changed = (old != cache).flatten(-2).any(dim=-1).flatten()
        assert set(changed.nonzero().flatten().tolist()) == {s for s in slots.tolist() if s >= 0}


def test_slot_past_the_end_is_an_error(edge):
    _, (key, value, key_cache, value_cache, slots) = edge("store_kv_cache", "one-row")
    with pytest.raises(IndexError):
        TASK.reference(key, value, key_cache, value_cache, slots + key_cache.shape[0] * key_cache.shape[1])


def test_sglang_pytorch_path_agrees_without_padding():
    pool = pytest.importorskip("sglang.srt.mem_cache.memory_pool")
    workload = next(w for w in TASK.edge_workloads if w.name == "edge-flat-cache")
    (key, value, *caches, slots), other = (TASK.make_inputs(workload, "cpu", 0) for _ in range(2))
    live = slots >= 0
    TASK.reference(key[live], value[live], *caches, slots[live])
    row = key.shape[1] * key.shape[2]
    theirs = other[2], other[3]
    # The last three arguments are read on devices other than this one.
    pool._set_kv_buffer_impl(key[live], value[live], *theirs, slots[live], row, key.dtype, None, theirs[0].shape[0])
    for ours, expected in zip(caches, theirs, strict=True):
        assert torch.equal(ours, expected)
