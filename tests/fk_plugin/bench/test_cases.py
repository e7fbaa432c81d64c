"""Faults that users of kernel benchmarks reported, each as a test named after it; the number is the report's."""

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fk_plugin.bench import linter, locate, measure, statistics
from fk_plugin.bench.measure import Plan, Samples
from fk_plugin.bench.rows import Row
from fk_plugin.bench.status import Status
from fk_plugin.bench.tensors import Fenced, copy_storages, read, upcast, write
from fk_plugin.bench.timing import RENEW
from fk_plugin.task import Task, Workload

TOY = Path(__file__).with_name("toy.py")
SCALE, ADD_TO = (locate.task(f"{TOY}:{name}") for name in ("SCALE", "ADD_TO"))

KERNEL = "def scale(x, weight):\n    return torch.addcmul(x.new_zeros(()), x, weight).contiguous()\n"
ADD = "def add_to(total, x):\n    total.copy_(torch.addcdiv(total, x, total.new_ones(())))\n"
PASSED = (Status.OK, Status.NOISY)


def status(rows: list[Row]) -> Status:
    """The status of the only row, and no number unless it passed."""
    (row,) = rows
    assert (row.ratio is not None) == (row.verdict.status is Status.OK)
    return row.verdict.status


def test_a_right_kernel_passes(examine: Callable[..., list[Row]]) -> None:
    assert status(examine(KERNEL)) in PASSED
    assert status(examine(ADD, task="ADD_TO")) in PASSED


def test_case_02_task_whose_output_ignores_an_input_is_refused() -> None:
    def ignores(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x + 1

    def constant(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(x)

    assert linter.lint(SCALE, SCALE.workloads[0], "cpu") == []
    overloads = (dataclasses.replace(SCALE.overloads[0], reference=ignores),)
    lax = dataclasses.replace(SCALE, overloads=overloads)
    assert "argument weight" in " ".join(linter.lint(lax, SCALE.workloads[0], "cpu"))
    meant = dataclasses.replace(lax, insensitive={"weight": "a test"})
    assert linter.lint(meant, SCALE.workloads[0], "cpu") == []
    flat = dataclasses.replace(SCALE, overloads=(dataclasses.replace(SCALE.overloads[0], reference=constant),))
    assert "constant" in " ".join(linter.lint(flat, SCALE.workloads[0], "cpu"))


def test_case_02_trivial_inputs_are_refused() -> None:
    def ones(workload: Workload, device: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = SCALE.make_inputs(workload, device, seed)
        return x, torch.ones_like(weight)

    trivial = dataclasses.replace(SCALE, make_inputs=ones)
    assert "weight is the same for every seed" in " ".join(linter.lint(trivial, SCALE.workloads[0], "cpu"))


def test_case_04_modified_input_fails(examine: Callable[..., list[Row]]) -> None:
    assert status(examine("def scale(x, weight):\n    return x.mul_(weight).clone()\n")) is Status.MUTATED_INPUT


def test_case_05_candidate_first_on_shared_inputs_changes_nothing_for_the_reference() -> None:
    x, weight = SCALE.make_inputs(SCALE.workloads[0], "cpu", 3)
    mine = copy_storages((x, weight))
    mine[0].zero_()
    again = SCALE.make_inputs(SCALE.workloads[0], "cpu", 3)
    assert torch.equal(x, again[0]) and not torch.equal(mine[0], x)


def test_case_15_rows_must_not_depend_on_the_batch(examine: Callable[..., list[Row]]) -> None:
    code = (
        KERNEL + "_fn = scale\ndef scale(x, weight):\n    out = _fn(x, weight)\n"
        "    if x.shape[0] > 30:\n"
        "        some = out.view(-1)[::50]\n        some.copy_(torch.nextafter(some, some.new_tensor(9e9)))\n"
        "    return out\n"
    )
    assert status(examine(code)) is Status.BATCH_VARIANT


def test_case_17_right_only_at_the_listed_sizes_fails(examine: Callable[..., list[Row]]) -> None:
    code = KERNEL + "_fn = scale\ndef scale(x, weight):\n    return _fn(x, weight) * (1 if x.shape[0] == 64 else 0)\n"
    assert status(examine(code, edge_workloads=())) is Status.WRONG
    code = KERNEL + "_fn = scale\ndef scale(x, weight):\n    return _fn(x, weight) * (1 if x.shape[1] != 33 else 0)\n"
    assert status(examine(code)) is Status.WRONG


def test_case_19_other_bits_from_run_to_run_fail(examine: Callable[..., list[Row]]) -> None:
    code = (
        "import itertools\n_CALLS = itertools.count()\n" + KERNEL + "_fn = scale\n"
        "def scale(x, weight):\n    return _fn(x, weight) * (1 + 1e-7 * (next(_CALLS) % 2))\n"
    )
    assert status(examine(code)) is Status.NONDETERMINISTIC


def test_case_22_forgotten_stride_fails(examine: Callable[..., list[Row]]) -> None:
    code = (
        "def scale(x, weight):\n"
        "    dense = x.as_strided(x.shape, (x.shape[1], 1))\n"
        "    return torch.addcmul(x.new_zeros(()), dense, weight)\n"
    )
    (row,) = examine(code)
    assert row.verdict.status is Status.WRONG and row.verdict.reason.startswith(("on strided", "on sliced"))


def test_case_23_a_guard_may_decline_a_layout(examine: Callable[..., list[Row]]) -> None:
    code = (
        "from fk_plugin.kernel import Requires, kernel\n"
        "def _guard(x, weight):\n    return None if x.is_contiguous() else 'not contiguous'\n"
        "@kernel('scale', requires=Requires(device='any', dtypes=('float32',)), guard=_guard)\n" + KERNEL
    )
    (row,) = examine(code)
    assert row.verdict.status in PASSED
    assert any(text.startswith("strided: not contiguous") for text in row.declined_edges)
    assert any(text.startswith("half: dtype bfloat16") for text in row.declined_edges)


def test_case_23_a_kernel_that_declines_everything_gets_no_number(examine: Callable[..., list[Row]]) -> None:
    code = (
        "from fk_plugin.kernel import Requires, kernel\n"
        "@kernel('scale', requires=Requires(device='any', dtypes=('float32',)), guard=lambda x, weight: 'no')\n"
        + KERNEL
    )
    assert status(examine(code)) is Status.DECLINED


@pytest.mark.parametrize("target", ["x", "weight"])
def test_case_25_undeclared_mutation_fails(target: str, examine: Callable[..., list[Row]]) -> None:
    code = KERNEL.replace("    return", f"    {target}.add_(1e-3)\n    return")
    (row,) = examine(code)
    assert row.verdict.status is Status.MUTATED_INPUT and target in row.verdict.reason


def test_case_26_aliased_arguments_keep_sharing_memory(examine: Callable[..., list[Row]]) -> None:
    total, x = ADD_TO.make_inputs(ADD_TO.workloads[0], "cpu", 1)
    for copied in (Fenced((total, x)).args, copy_storages((total, x)), upcast((total, x))):
        a, b = copied
        assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
        assert torch.equal(a, total) and torch.equal(b, x) and a.stride() == total.stride()
    spill = "def add_to(total, x):\n    both = total.as_strided((total.shape[0], 2 * total.shape[1]), total.stride())\n"
    spill += "    total.copy_(torch.addcdiv(total, x, total.new_ones(())))\n    both[:, -1] += 1\n"
    assert status(examine(spill, task="ADD_TO")) is Status.MUTATED_INPUT


def test_case_28_value_returned_instead_of_written_fails(examine: Callable[..., list[Row]]) -> None:
    assert status(examine("def add_to(total, x):\n    return total + x\n", task="ADD_TO")) is Status.BAD_OUTPUT
    assert status(examine("def add_to(total, x):\n    total + x\n", task="ADD_TO")) is Status.WRONG


def test_case_29_empty_in_empty_out(examine: Callable[..., list[Row]]) -> None:
    code = KERNEL.replace("    return", "    assert x.numel(), 'null pointer'\n    return")
    (row,) = examine(code)
    assert row.verdict.status is Status.CRASHED and "no-rows" in row.verdict.reason


def test_case_32_writes_beside_the_arguments_are_seen() -> None:
    fenced = Fenced((torch.zeros(4, 6)[:, :3],))
    before = fenced.snapshot()
    (view,) = fenced.args
    view.fill_(1)
    assert fenced.changes(before, [view]).storages == ()
    view.as_strided((1,), (1,), view.storage_offset() + 3).fill_(1)  # between two rows of the view
    assert fenced.changes(before, [view]).storages == (0,)
    view.as_strided((1,), (1,), view.storage_offset() + 24).fill_(1)  # behind the last row
    assert fenced.changes(before, [view]).guard_bytes == 4


def test_case_35_preparation_is_outside_the_clock(examine: Callable[..., list[Row]]) -> None:
    head = "from fk_plugin.kernel import Requires, kernel\nimport time\n"
    mark = "@kernel('scale', requires=Requires(device='any', dtypes=('float32', 'bfloat16')), prepare=lambda: {})\n"
    (plain,) = examine(head + mark.format("None") + KERNEL)
    (slow,) = examine(head + mark.format("time.sleep(0.5)") + KERNEL)
    assert plain.candidate_s is not None and slow.candidate_s is not None
    assert slow.candidate_s < 10 * plain.candidate_s < 0.05


@pytest.mark.parametrize("samples", [[1e-6, 0.0, 1e-6], [-1e-9, 1e-6, 1e-6], []])
def test_case_39_zero_time_is_a_typed_error(samples: list[float]) -> None:
    with pytest.raises(statistics.ZeroTime, match="positive"):
        statistics.median(samples)
    if samples:
        with pytest.raises(statistics.ZeroTime):
            statistics.ratio([1e-6] * 3, samples)


def test_case_41_late_work_is_waited_for(examine: Callable[..., list[Row]]) -> None:
    code = (
        "import sys, threading\n" + KERNEL + "_fn = scale\n"
        "def scale(x, weight):\n"
        "    if sys._getframe(1).f_code.co_name != 'sample':\n        return _fn(x, weight)\n"
        "    out = torch.zeros_like(x)\n"
        "    threading.Timer(0.002, lambda: out.copy_(_fn(x, weight))).start()\n    return out\n"
    )
    assert status(examine(code)) is Status.CHEAT_ASYNC


def test_case_45_each_attempt_measures_anew(examine: Callable[..., list[Row]]) -> None:
    (row,) = examine(KERNEL, noise=1e-9)
    assert row.verdict.status is Status.NOISY
    assert len(row.samples["c"]) >= 3 * 6, "three attempts of at least six rounds"
    assert len(set(row.samples["c"])) > 6


def test_case_47_too_noisy_says_so_instead_of_a_number(examine: Callable[..., list[Row]]) -> None:
    generator = random.Random(0)
    wild = [generator.choice((35e-6, 45e-3)) for _ in range(20)]
    found = statistics.ratio([40e-6] * 20, wild)
    assert "wider than" in str(statistics.too_noisy(found, 0.1))
    (row,) = examine(KERNEL, noise=1e-9)
    assert row.ratio is None and "interval" in row.verdict.reason and row.state


def test_case_49_results_of_earlier_calls_fail(examine: Callable[..., list[Row]]) -> None:
    code = (
        KERNEL + "_fn, _SEEN = scale, {}\ndef scale(x, weight):\n"
        "    return _SEEN.setdefault(tuple(x.shape), _fn(x, weight)).clone()\n"
    )
    assert status(examine(code, hidden=0, edge_workloads=())) is Status.STALE_OUTPUT


def test_case_49_no_mean_over_a_failure() -> None:
    from fk_plugin.bench import report
    from fk_plugin.bench.status import OK, Verdict

    ratio = statistics.Ratio(value=1e30, low=1e30, high=1e30)
    good = Row(kernel="k", source="s", workload="a", verdict=OK, ratio=dataclasses.replace(ratio, value=2.0))
    bad = Row(kernel="k", source="s", workload="b", verdict=Verdict(status=Status.IMPLAUSIBLE, reason="too fast"))

    class Silent:
        missing: dict[str, str] = {}
        wrong_baselines: dict[str, str] = {}

    assert not any("geometric" in line for line in report.remarks([good, good, bad], Silent()))
    assert any("geometric mean over 2 workloads: 2.00x" in line for line in report.remarks([good, good], Silent()))


def test_case_52_both_sides_get_the_same_kind_of_call() -> None:
    """One schedule names values for both; a side cannot be given other arguments than the workload's."""
    plan = Plan(mode="eager", cold=True)
    seen: list[dict[str, object]] = []

    class Fake:
        ranks = (object(),)

        def ask(self, op: str, **how: object) -> list[dict[str, object]]:
            seen.append(how)
            return [{"seconds_per_call": [1e-6] * len(how["schedule"]), "seconds": 1.0}]  # type: ignore[arg-type]

    clock = measure.Clock(Fake(), SCALE.workloads[0], plan, ["b", "c"])  # type: ignore[arg-type]
    clock.rounds(8, keep=True)
    (how,) = seen
    sides = [side for side, _ in how["schedule"]]  # type: ignore[union-attr]
    seeds = [recipe["seed"] for _, recipes in how["schedule"] for recipe in recipes]  # type: ignore[union-attr]
    assert sides.count("b") == sides.count("c") == 8 and len(set(seeds)) == 16
    assert sides != ["b", "c"] * 8, "the order is random"


def test_first_round_after_buffers_are_made_anew_does_not_count() -> None:
    """Slow where memory was just mapped; its calls are judged like all others."""
    plan = Plan(mode="graph", cold=True, calls=2)

    class Fake:
        ranks = (object(),)

        def ask(self, op: str, schedule: list[tuple[str, list[object]]], **how: object) -> list[dict[str, object]]:
            seconds, fresh = [], 0
            for side, _ in schedule:
                if side == RENEW:
                    fresh = 2
                else:
                    seconds.append(9.0 if fresh else 1.0)
                    fresh = max(fresh - 1, 0)
            return [{"seconds_per_call": seconds, "seconds": 1.0}]

    clock = measure.Clock(Fake(), SCALE.workloads[0], plan, ["b", "c"])  # type: ignore[arg-type]
    _, kept = clock.rounds(6, keep=True)
    clock.rounds(4, keep=True)
    assert clock.samples.seconds == {"b": [1.0] * 10, "c": [1.0] * 10}
    assert len(kept) == (6 + 2) * 2, "blocks begin at rounds 0 and 4"


def test_case_54_two_crashes_are_not_equal(examine: Callable[..., list[Row]]) -> None:
    assert status(examine("def scale(x, weight):\n    raise RuntimeError('same text')\n")) is Status.CRASHED


def test_case_67_interval_covers_its_ratio_and_shrinks_with_samples() -> None:
    generator = random.Random(1)

    def draw(count: int) -> statistics.Ratio:
        return statistics.ratio(
            [generator.gauss(2e-5, 2e-6) for _ in range(count)], [generator.gauss(1e-5, 1e-6) for _ in range(count)]
        )

    few, many = draw(10), draw(200)
    assert few.low <= few.value <= few.high and many.half_width < few.half_width
    hits = sum(r.low <= 2.0 <= r.high for r in (draw(30) for _ in range(60)))
    assert hits >= 52, f"a 95 % interval held the truth in {hits} of 60 runs"


def test_case_68_warm_up_rule_spares_a_lazy_first_call() -> None:
    lazy = Samples(seconds={"c": [1e-5] * 9}, warm={"c": [0.4, 1e-5, 1e-5, 1e-5, 1e-5]})
    sleeper = Samples(seconds={"c": [1e-5] * 9}, warm={"c": [0.02] * 5})
    assert measure.warm_up_differs(lazy) is None
    assert "warm-up" in str(measure.warm_up_differs(sleeper))


def test_results_that_do_not_fit_their_description_are_refused(tmp_path: Path) -> None:
    entry = write(torch.arange(6.0).reshape(2, 3), tmp_path / "r.bin")
    assert torch.equal(read(tmp_path, dict(entry)), torch.arange(6.0).reshape(2, 3))
    for lie in ({"shape": [2, 4]}, {"dtype": "load"}, {"shape": [-1, 3]}, {"file": "../../etc/passwd"}):
        entry = write(torch.arange(6.0).reshape(2, 3), tmp_path / "r.bin")
        with pytest.raises(ValueError):
            read(tmp_path, {**entry, **lie})


def test_secret_choice_looks_at_everything_small_and_two_of_anything_large() -> None:
    assert measure.picks(40, 1000) == list(range(40))
    chosen = {tuple(measure.picks(40, 1 << 30)) for _ in range(20)}
    assert all(len(pair) == 2 for pair in chosen) and len(chosen) > 5


def test_tasks_validate_what_the_sandbox_relies_on() -> None:
    def build(**more: object) -> Task:
        return dataclasses.replace(SCALE, **more)

    with pytest.raises(ValueError, match="phase"):
        build(edge_workloads=(dataclasses.replace(SCALE.workloads[0], name="new"),))
    with pytest.raises(ValueError, match="unique"):
        build(edge_workloads=(dataclasses.replace(SCALE.workloads[0], phase="edge"),))
    with pytest.raises(ValueError, match="compare"):
        build(compare="roughly")
    with pytest.raises(ValueError, match="oracle"):
        build(compare="distribution")
