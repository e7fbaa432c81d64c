"""rotary_embedding and rope_kv_write: what they rotate, what they leave, and the rounding orders."""

import math

import pytest
import torch

from fk_plugin import registry
from fk_tasks.rope_kv import rope_kv_write
from fk_tasks.rotary import rotary_embedding, rotary_embedding_returning

ROTARY = registry.task("rotary_embedding")


def _slow(x, position, table, neox):
    """One head at one position, pair by pair, in Python's own float64."""
    half, out = table.shape[1] // 2, x.tolist()
    for i in range(half):
        first, second = (i, i + half) if neox else (2 * i, 2 * i + 1)
        cos, sin = float(table[position, i]), float(table[position, half + i])
        a, b = float(x[first]), float(x[second])
        out[first], out[second] = a * cos - b * sin, b * cos + a * sin
    return torch.tensor(out, dtype=torch.float64)


@pytest.mark.parametrize("name", ["odd-size", "partial", "interleaved-partial", "end-positions", "float32-table"])
def test_every_head_is_rotated_by_its_position(edge, name):
    _, (query, key, positions, table, size, neox, rounds) = edge("rotary_embedding", name)
    made = rotary_embedding_returning(query, key, positions, table, size, neox, rounds)
    for x, out in zip((query, key), made, strict=True):
        for token in (0, len(positions) - 1):
            for head, turned in zip(x[token].split(size), out[token].split(size), strict=True):
                exact = _slow(head, int(positions[token]), table, neox)
                torch.testing.assert_close(turned.double(), exact, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("workload", ROTARY.edge_workloads, ids=lambda w: w.name)
def test_in_place_equals_returning_and_leaves_the_value_alone(workload):
    args = ROTARY.make_inputs(workload, "cpu", 0)
    query, key = args[:2]
    before = query.clone(), key.clone()
    expected = rotary_embedding_returning(*args)
    assert torch.equal(query, before[0])
    assert torch.equal(key, before[1])
    assert rotary_embedding(*args) is None
    assert torch.equal(query, expected[0])
    assert torch.equal(key, expected[1])


def test_writes_through_views_that_the_caller_holds():
    qkv = torch.randn(5, 3 * 64, generator=torch.Generator().manual_seed(0))
    before, live = qkv.clone(), qkv[:, :64]
    query, key, value = qkv.split(64, dim=1)
    table = ROTARY.make_inputs(ROTARY.edge_workloads[1], "cpu", 0)[3].float()
    rotary_embedding(query, key, torch.arange(1, 6), table, 64)
    assert not torch.equal(live, before[:, :64])
    assert torch.equal(live, query)
    assert torch.equal(value, before[:, 128:])


def test_position_zero_is_the_identity(edge):
    _, (query, key, positions, *rest) = edge("rotary_embedding", "odd-size")
    made = rotary_embedding_returning(query, key, torch.zeros_like(positions), *rest)
    assert torch.equal(made[0], query)
    assert torch.equal(made[1], key)


def test_scores_depend_on_the_distance_alone():
    """The reason for the embedding: q at m and k at n meet in a score that knows m - n and nothing else."""
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(1, 64, generator=generator), torch.randn(1, 64, generator=generator)
    workload = next(w for w in ROTARY.edge_workloads if w.name == "edge-float32")
    table = ROTARY.make_inputs(workload, "cpu", 0)[3]
    for neox in (True, False):
        scores = []
        for shift in (0, 7, 300):
            q, k = (
                rotary_embedding_returning(x, x[:, :0], torch.tensor([at + shift]), table, 64, neox)[0]
                for x, at in ((query, 12), (key, 4))
            )
            scores.append(float(q @ k.T))
        assert all(math.isclose(s, scores[0], abs_tol=1e-3) for s in scores)


def test_the_two_rounding_orders_differ_and_each_is_what_it_says(edge):
    _, (query, key, positions, table, size, *_) = edge("rotary_embedding", "rounded-once")
    twice, once = (
        rotary_embedding_returning(query, key, positions, table, size, True, rounds)[0] for rounds in (True, False)
    )
    assert 0.1 < float((twice != once).float().mean()) < 0.5
    exact = rotary_embedding_returning(query.double(), key.double(), positions, table.double(), size)[0]
    assert float((once != exact.bfloat16()).float().mean()) < 1e-3


@pytest.mark.parametrize("position", [-1, 512])
def test_a_position_outside_the_table_is_an_error(edge, position):
    _, (query, key, positions, *rest) = edge("rotary_embedding", "one-row")
    with pytest.raises(IndexError):
        rotary_embedding(query, key, torch.full_like(positions, position), *rest)


@pytest.mark.parametrize("name", ["padded", "all-padded", "flat-cache", "odd-page", "interleaved-partial"])
def test_cache_holds_rotated_keys_and_values_where_the_slots_say(edge, name):
    task, args = edge("rope_kv_write", name)
    query, key, value, query_out, key_out, *caches, positions, table, slots, size, neox, rounds = args
    before = [c.clone() for c in caches]
    expected = rotary_embedding_returning(query, key, positions, table, size, neox, rounds)
    task.reference(*args)
    assert torch.equal(query_out, expected[0])
    assert torch.equal(key_out, expected[1])
    for new, cache, old in zip((expected[1], value), caches, before, strict=True):
        now, then = (c.reshape(-1, *c.shape[-2:]) for c in (cache, old))
        for token, slot in enumerate(slots.tolist()):
            if slot >= 0:
                assert torch.equal(now[slot].flatten(), new[token])
        free = torch.ones(len(now), dtype=torch.bool)
        free[slots[slots >= 0]] = False
        assert torch.equal(now[free], then[free]), "a slot that no token owns was written"


def test_in_place_form_equals_the_other(edge):
    task, args = edge("rope_kv_write", "in-place")
    query, key, value, query_out, key_out, *caches, positions, table, slots, size, neox, rounds = args
    assert query_out is query
    assert key_out is key
    other = [torch.empty_like(query), torch.empty_like(key), *(c.clone() for c in caches)]
    rope_kv_write(query, key, value, *other, positions, table, slots, size, neox, rounds)
    task.reference(*args)
    for ours, theirs in zip((query, key, *caches), other, strict=True):
        assert torch.equal(ours, theirs)


def test_slot_past_the_end_is_an_error(edge):
    task, args = edge("rope_kv_write", "one-row")
    with pytest.raises(IndexError):
        task.reference(*args[:9], args[9] + 10**6, *args[10:])
