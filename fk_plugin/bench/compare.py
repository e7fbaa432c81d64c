"""Errors of a result against the float64 oracle, and the tolerance derived from what the yardsticks lose.

A yardstick is something production trusts: the task's reference in its own dtype, and the engines' kernels where they
load. A candidate may lose twice what they lose, or four times at a single element, and no share of elements is free.
Three measures, because each alone has a known hole:

    row      relative L2 error of the worst row: one bad row is not averaged away
    element  worst error in units in the last place of max(|oracle|, rms of the row): one bad element is not averaged
             away, and an output that cancels to nearly zero does not count as infinitely wrong
    ulp      worst error in units in the last place of |oracle| itself: small elements are not free either; used only
             where the yardsticks stay below _HEAVY, since a sum that cancels has no bound in this unit. In 16 bits
             |oracle| counts as at least 2^-12 of the row's rms: float32 arithmetic before the rounding is 2^-24 of the
             rms off, and the largest of many elements near zero would say how many were looked at
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from fk_plugin.bench.tensors import row_chunks

# Near a sum that cancels, errors in this unit have no typical size: the largest of a few thousand says little.
_HEAVY = 8.0
# A kernel that sums in another order rounds differently in c * 2^-24 / 2^-9 of bfloat16 elements, c being the error
# of the float32 sum in its own last places: below 1 % for c up to 300. One intermediate rounding left out changes 10
# to 40 %.
_ROUNDING_SHARE = 0.05
_FEW = 512
_NARROW = 16
_EDGES = (0.0, 0.5, 1.0, 2.0, 4.0, 16.0, 256.0)


@dataclass(frozen=True, kw_only=True)
class Errors:
    """What one result loses against the oracle.

    `row`, `element`, `ulp`: see the module. `row_at` is the worst row, `element_at` its worst element's flat index.
    `other_bits` is the share of elements that differ from the reference. `histogram` counts elements whose error in
    ulp is at most each of 0, 0.5, 1, 2, 4, 16, 256 and above.
    """

    row: float = 0.0
    row_at: int = 0
    element: float = 0.0
    element_at: int = 0
    ulp: float = 0.0
    other_bits: float = 0.0
    histogram: tuple[int, ...] = (0,) * (len(_EDGES) + 1)


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """The most a candidate may lose, in the measures of Errors. `ulp` is None where that unit has no bound."""

    row: float
    element: float
    ulp: float | None
    other_bits: float | None


def rows_of(tensor: torch.Tensor) -> torch.Tensor:
    """As [rows, width]: the last axis is the width; a vector is one row."""
    if tensor.dim() < 2:
        return tensor.reshape(1, -1)
    return tensor.reshape(-1, tensor.shape[-1]) if tensor.numel() else tensor.reshape(0, max(tensor.shape[-1], 1))


def spacing(magnitude: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The unit in the last place of `dtype` at each |value| (float64), never below the smallest subnormal."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(magnitude)
    return torch.ldexp(torch.ones_like(magnitude), (exponent - 1)).mul_(info.eps).clamp_(min=info.tiny * info.eps)


def same_places(got: torch.Tensor, reference: torch.Tensor) -> str | None:
    """Why NaN and infinities do not fall where the reference has them, or None. The reference alone says where."""
    if not got.is_floating_point():
        return None
    for name, test in (("NaN", torch.isnan), ("inf", torch.isposinf), ("-inf", torch.isneginf)):
        differs = test(got) != test(reference)
        if bool(differs.any()):
            at = int(differs.reshape(-1).nonzero()[0])
            seen, wanted = got.reshape(-1)[at].item(), reference.reshape(-1)[at].item()
            count = int(differs.sum())
            return f"{count} of {got.numel()} elements differ in {name}; element {at} is {seen}, expected {wanted}"
    return None


def measure(got: torch.Tensor, oracle: torch.Tensor, reference: torch.Tensor) -> Errors:
    """Errors of `got` against the float64 `oracle`; all three of one shape, `reference` of got's dtype.

    Elements where the reference is not finite are left to `same_places`; where the reference is finite and the oracle
    is not, the reference is the truth.
    """
    total = Errors()
    got2, oracle2, reference2 = rows_of(got), rows_of(oracle), rows_of(reference)
    different = 0
    for part in row_chunks(*got2.shape):
        errors = _measure_chunk(got2[part], oracle2[part].double(), reference2[part], part.start)
        total = worst((total, errors))
        different += int((got2[part] != reference2[part]).logical_and(reference2[part].isfinite()).sum())
    return replace(total, other_bits=different / max(got.numel(), 1))


def _measure_chunk(got: torch.Tensor, oracle: torch.Tensor, reference: torch.Tensor, first_row: int) -> Errors:
    if got.numel() == 0:
        return Errors()
    finite = reference.isfinite()
    truth = torch.where(oracle.isfinite(), oracle, reference.double())
    truth = torch.where(finite, truth, 0.0)
    # Where `got` is not finite but the reference is, the error is infinite by this rule, whatever mask is used.
    off = torch.where(finite, (got.double() - truth).abs().nan_to_num(nan=math.inf), 0.0)
    norm = truth.norm(dim=1)
    if truth.shape[1] < _NARROW:  # too few elements to say what is small in a row: the typical row's size stands in
        norm = norm.clamp(min=float(truth.norm()) / math.sqrt(max(truth.shape[0], 1)))
    row = torch.where(norm > 0, off.norm(dim=1) / norm.clamp(min=1e-300), torch.where(off.amax(1) > 0, math.inf, 0.0))
    rms = (norm / math.sqrt(max(truth.shape[1], 1))).unsqueeze(1)
    least = rms * 2.0**-12 if torch.finfo(reference.dtype).bits == 16 else torch.zeros_like(rms)
    ulp = off / spacing(torch.maximum(truth.abs(), least), reference.dtype)
    element = off / spacing(torch.maximum(truth.abs(), rms), reference.dtype)
    at = int(element.argmax())
    row_at = int(row.argmax())
    edges = torch.tensor(_EDGES, dtype=torch.float64, device=ulp.device)
    counts = torch.bincount(torch.bucketize(ulp.reshape(-1), edges), minlength=len(_EDGES) + 1)
    return Errors(
        row=float(row[row_at]),
        row_at=first_row + row_at,
        element=float(element.reshape(-1)[at]),
        element_at=first_row * got.shape[1] + at,
        ulp=float(ulp.max()),
        histogram=tuple(int(n) for n in counts),
    )


def worst(errors: Iterable[Errors]) -> Errors:
    """The largest of each measure; histograms added."""
    out = Errors()
    for e in errors:
        out = Errors(
            row=max(out.row, e.row),
            row_at=e.row_at if e.row > out.row else out.row_at,
            element=max(out.element, e.element),
            element_at=e.element_at if e.element > out.element else out.element_at,
            ulp=max(out.ulp, e.ulp),
            other_bits=max(out.other_bits, e.other_bits),
            histogram=tuple(a + b for a, b in zip(out.histogram, e.histogram, strict=True)),
        )
    return out


def tolerance(yardstick: Errors, dtype: torch.dtype, *, same_rounding: bool, width: int = 4096) -> Tolerance:
    """What a candidate may lose, given what the yardsticks lost on the same inputs.

    Floors, because a yardstick may happen to be exact, above all where rows are few and narrow: correct rounding costs
    0.3 units in the last place in a long row (the root of 1/12, for a uniform error), up to one in a row of `width` 1.
    A 16-bit result hides what the arithmetic before the rounding loses; a wider one does not, and an exponential
    alone may be off by one or two units there.
    """
    info = torch.finfo(dtype)
    wide = info.bits > 16
    narrow = 1 / math.sqrt(max(width, 1))
    rounding = info.eps * (1.5 + narrow if wide else 0.3 + 0.7 * narrow)
    return Tolerance(
        row=2 * max(yardstick.row, rounding),
        element=max(4.0 if wide else 2.0, 4 * yardstick.element),
        ulp=None if yardstick.ulp > _HEAVY else 4 + 8 * yardstick.ulp,
        other_bits=max(_ROUNDING_SHARE, 1.5 * yardstick.other_bits) if same_rounding and info.bits == 16 else None,
    )


def excess(errors: Errors, allowed: Tolerance, width: int) -> str | None:
    """Why the errors exceed the tolerance, or None. Written so that a NaN error never passes."""
    if not errors.row <= allowed.row:
        return f"row {errors.row_at} is off by {errors.row:.3g} (relative L2), allowed {allowed.row:.3g}"
    if not errors.element <= allowed.element:
        row, column = divmod(errors.element_at, max(width, 1))
        return (
            f"element {column} of row {row} is off by {errors.element:.3g} units in the last place of its row, "
            f"allowed {allowed.element:.3g}"
        )
    if allowed.ulp is not None and not errors.ulp <= allowed.ulp:
        return f"an element is off by {errors.ulp:.3g} units in its last place, allowed {allowed.ulp:.3g}"
    return None


def rounding_excess(errors: Errors, allowed: Tolerance, elements: int) -> str | None:
    """Why the result is rounded in another order than the reference's, or None; a share needs elements to be one."""
    if allowed.other_bits is None or errors.other_bits <= allowed.other_bits or elements < _FEW:
        return None
    return (
        f"{errors.other_bits:.1%} of elements are rounded otherwise than the reference's, allowed "
        f"{allowed.other_bits:.1%}: an intermediate rounding is missing or added"
    )


def verdict_of(got: torch.Tensor, expected: torch.Tensor) -> str | None:
    """The rule for one tensor with the expected tensor as its own yardstick (see the check judge_elsewhere)."""
    errors = measure(got, expected.double(), expected)
    return excess(errors, tolerance(Errors(), got.dtype, same_rounding=False), got.shape[-1])


def equal_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype hold the same bits (NaN equals the same NaN)."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.numel() == 0:
        return True
    raw_a, raw_b = (t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return bool(torch.equal(raw_a, raw_b))


def improbable(draws: torch.Tensor, probabilities: torch.Tensor, *, level: float = 1e-6) -> str | None:
    """Why draws [n, rows] cannot come from probabilities [rows, outcomes] (float64), or None.

    An outcome of probability 0 must never appear. The rest is a chi-square test per row, outcomes expected fewer than
    5 times pooled, at `level` over all rows together: an honest kernel is accused once in a million runs.
    """
    rows, outcomes = probabilities.shape
    if draws.numel() == 0:
        return None
    if int(draws.min()) < 0 or int(draws.max()) >= outcomes:
        return f"outcome {int(draws.min())} or {int(draws.max())} lies outside 0..{outcomes - 1}"
    counts = torch.zeros(rows, outcomes, dtype=torch.float64)
    counts.scatter_add_(1, draws.T.long(), torch.ones(draws.T.shape, dtype=torch.float64))
    impossible = (counts > 0) & (probabilities == 0)
    if bool(impossible.any()):
        row, outcome = impossible.nonzero()[0].tolist()
        return f"row {row} drew outcome {outcome}, whose probability is 0"
    expected = probabilities / probabilities.sum(1, keepdim=True) * draws.shape[0]
    for row in range(rows):
        common = expected[row] >= 5
        seen = torch.cat((counts[row][common], counts[row][~common].sum().reshape(1)))
        want = torch.cat((expected[row][common], expected[row][~common].sum().reshape(1)))
        seen, want = seen[want > 1e-9], want[want > 1e-9]
        freedom = len(want) - 1
        if freedom < 1:
            continue
        statistic = float(((seen - want) ** 2 / want).sum())
        chance = float(
            torch.special.gammaincc(
                torch.tensor(freedom / 2.0, dtype=torch.float64), torch.tensor(statistic / 2.0, dtype=torch.float64)
            )
        )
        if not chance >= level / rows:
            return f"row {row}: draws fit the probabilities with chance {chance:.1g} (chi-square {statistic:.0f})"
    return None
