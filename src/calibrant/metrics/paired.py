"""Do two models, or the runs of two rows, differ by more than chance? Tests over examples, and over seeds."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from calibrant.core.binning import CHUNK_ENTRIES, Summary, cell_index, equal_width_edges, equal_width_index, summarize
from calibrant.core.records import Entry, Paired, Predictions
from calibrant.metrics.intervals import NORMAL_95, resampled_values
from calibrant.metrics.levels import Gaps, check_draws, levels_of
from calibrant.metrics.measure import values_of
from calibrant.metrics.scores import nll_and_brier
from calibrant.metrics.table import Metric, is_top_label, score_metrics

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

__all__ = ["paired_test"]

Array: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.float32]]"
Rows: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.int64]]"

# More examples than this are drawn in as many blocks of equal size, put together by chance: sums over them spread as sums over
# examples do, to 1 %, and ten million examples take hardly longer than twenty thousand.
_BLOCKS = 20_000
# Counts held at once, one per block and resample: 40 MB.
_CHUNK_COUNTS = 10_000_000
# Chances that a Poisson number of mean one is at most 0, 1, 2, ..., in units of 2^-16.
_POISSON = np.cumsum([1 / float(np.prod(np.arange(1, k + 1))) for k in range(9)]) * np.exp(-1) * 65536
_HOW_OFTEN = np.searchsorted(_POISSON, np.arange(65536), side="right").astype(np.float32)
# Two models whose scores differ by less than a millionth differ by the rounding of float32, however consistently.
_ROUNDING = 1e-6
# What is left of nothing after sums of 10,000 numbers in another order, in double precision.
_NOTHING = 1e-12
# Two seeds leave one degree of freedom, with which a t-test hardly ever finds anything.
LEAST_SEEDS = 3
# Draws, and examples of each, from which is known how far two calibrated models differ.
_CHANCE_DRAWS, _CHANCE_EXAMPLES = 200, 20_000
# Below the first number of examples resamples vary clearly less than new examples would; fewer than the second prove nothing.
_FEW, _LEAST = 100, 10


def paired_test(
    first: Predictions, second: Predictions, *, n_bins: int = 15, n_resamples: int = 1000, seed: int = 0
) -> dict[str, Paired]:
    r"""Difference of every score between two models on the same examples, with interval and p-value.

    A calibrated model shows calibration errors by chance, the more the less sure it is. So for these the test asks twice: would
    new examples show the difference again, and would two calibrated models with the same probabilities show it? The p-value
    is the larger of the two, and the interval holds both intervals.

    For the first, both models are scored on the same resamples, so what makes an example hard for both cancels. With
    differences :math:`d` on the data (second minus first) and :math:`d^*_r` on the resamples, whose mean is :math:`\bar d^*`,

    .. math:: p = \frac{1 + \#\{r : |d^*_r - \bar d^*| \ge |d|\}}{R + 1}

    and the 95 % interval is :math:`d` plus and minus the 95 % quantile of :math:`|d^*_r - \bar d^*|`, so that it holds zero
    where p > 0.05; it ends at the largest difference that is possible, 1 for a score between 0 and 1. An example is drawn a
    Poisson number of times with mean one. The gaps of bins hold chance already; before resampling adds it again they are
    shrunk by its expected part, without which the test would be too timid near perfect calibration. Resamples of few examples
    vary too little: below N = 100 the :math:`|d^*_r - \bar d^*|` are multiplied by :math:`\sqrt{N / (N - 1)}\, t_{N - 1} / z`,
    the quotient of the 97.5 % points of Student's and the normal distribution; fewer than ten prove nothing. With weights, N
    here is :math:`(\sum w)^2 / \sum w^2`, how many they are worth.

    For the second, labels are drawn from the probabilities of each model, 200 times, by the same random numbers. With the mean
    :math:`\mu` and the standard deviation :math:`\sigma` of the differences that these show, :math:`p` is that of
    :math:`(d - \mu) / \sigma` under the normal distribution, and 1 where :math:`d - \mu` and :math:`d` differ in sign.

    Args:
        first: Predictions of one model.
        second: Those of the other, for the same examples in the same order.
        n_bins: Number of bins of the binned metrics.
        n_resamples: Number of resamples R.
        seed: Of the random draws; the same seed gives the same numbers.

    Returns:
        Key → ``Paired(difference, low, high, p_value)``; a negative difference says that the second is better, for every
        built-in key but ``signed_gap``. Raises ``ValueError`` if the two are not about the same examples.

    Example:
        >>> labels = [0, 1] * 100
        >>> good = Predictions(probs=[[0.8, 0.2], [0.2, 0.8]] * 100, labels=labels)
        >>> bad = Predictions(probs=[[0.6, 0.4], [0.6, 0.4]] * 100, labels=labels)
        >>> test = paired_test(bad, good)["error"]
        >>> test.difference, test.p_value < 0.01
        (-0.5, True)

    Reference:
        Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 16.4; Hanley and MacGibbon, Computer Methods and
        Programs in Biomedicine 83, 2006 (Poisson numbers); James and Stein, Fourth Berkeley Symposium, 1961; Hesterberg, The
        American Statistician, 2015, section 3.2 (few examples).
    """
    where = "paired_test"
    check_draws(n_bins, n_resamples, seed, where=where)
    _check_same_examples(first, second, where=where)
    first, second = first.counted, second.counted
    block = np.arange(len(first))
    if len(first) > _BLOCKS:
        block = np.random.default_rng([seed, 2]).permutation(len(first)) % _BLOCKS
    one, two = (Sample(given, n_bins=n_bins, block=block) for given in (first, second))
    rng, parts = np.random.default_rng([seed, 1]), []
    for counts in _draw_counts(int(block.max()) + 1, n_resamples=n_resamples, seed=seed):
        normal = torch.from_numpy(rng.standard_normal((counts.shape[1], n_bins)))
        before, after = (sample.scores(counts, normal) for sample in (one, two))
        parts.append({key: after[key] - before[key] for key in before})
    drawn = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    # Rounded, so that ten equal weights are worth ten and not a little less.
    wider = _widening(round(one.size, 6))
    # Both calibrated: one number per example decides about both. Where they predict the same class they are right together.
    rows = rng.permutation(len(first))[:_CHANCE_EXAMPLES]
    uniform = torch.from_numpy(rng.random((len(rows), _CHANCE_DRAWS), dtype=np.float32))
    differ = (first.predicted != second.predicted)[rows].float().unsqueeze(1)
    before, after = one.by_chance(rows, uniform, uniform), two.by_chance(rows, uniform, (uniform - differ).abs())
    found = {}
    for key, metric in score_metrics(positive=first.num_classes == 2).items():
        if key not in drawn:
            both = (resampled_values(metric, given, n_resamples, seed=seed, n_bins=n_bins) for given in (second, first))
            drawn[key] = torch.sub(*both)
        test = _compare(two.values[key] - one.values[key], drawn[key], most=metric.largest, wider=wider)
        found[key] = _beyond_chance(test, after[key] - before[key], most=metric.largest) if key in before else test
    return found


def _beyond_chance(test: Paired, drawn: Tensor, *, most: float) -> Paired:
    """Ask as well whether two calibrated models would differ as much; the larger p-value, and an interval that holds both."""
    if not test.low < test.high:
        return test
    level, spread = float(drawn.mean()), max(float(drawn.std()), _NOTHING)
    excess, half = test.difference - level, NORMAL_95 * spread
    # Of differences of opposite sign, with and without what chance gives, neither can be believed.
    p_value = math.erfc(abs(excess) / spread / math.sqrt(2)) if excess * test.difference > 0 else 1.0
    low, high = max(min(test.low, excess - half), -most), min(max(test.high, excess + half), most)
    return Paired(test.difference, low, high, max(test.p_value, p_value))


class View:
    """What one model says of one event, and with what probability: its top class is right, or the positive class occurs."""

    def __init__(self, summary: Summary, weights: Tensor, block: Rows, metrics: Mapping[str, Metric]) -> None:
        top, self.metrics = summary.examples, metrics
        self.levels = levels = levels_of(summary.cells, size=summary.effective_n, n_bins=summary.n_bins)
        level = torch.searchsorted(levels.last_cell, cell_index(top.confidence, dtype=top.dtype))
        self.level, self.confidence = level, top.confidence
        self.places = _by_block(weights, level * 2 + top.correct.long(), block, shape=(2 * len(levels), int(block.max()) + 1))
        # What to add to the accuracy of each level so that the gaps of bins shrink; and the standard deviation that resamples
        # lack of that of the accuracy of equal-width bins.
        by_width, by_mass = (Gaps(levels, piece) for piece in (levels.bin_index, levels.mass_index))
        chances = (given.confidence * (1 - given.confidence) / given.count for given in (by_width, by_mass))
        shifts = (_shrinkage(given.gap, v)[given.piece] for given, v in zip((by_width, by_mass), chances, strict=True))
        self.shift_by_width, self.shift_by_mass = shifts
        lacking = (by_width.variance - by_width.accuracy * (1 - by_width.accuracy)).clamp_min(0)
        self.lacking = (lacking / by_width.count).sqrt()[by_width.piece]

    def scores(self, counts: Array, total: Tensor, normal: Tensor) -> dict[str, Tensor]:
        """Metrics ``[r]`` of resamples in which blocks of examples are drawn ``counts [B, r]`` times, of weight ``total [r]``.

        The gaps of the data hold chance already, and a resample adds it once more: so the gaps of bins are first reduced by
        what chance is expected to have added (James and Stein). Kernels average over many gaps, and squares have their chance
        subtracted; metrics made of those need it not. The MCE, on the other hand, often is the gap of a bin with few examples,
        of which resamples show too little variety (none, if there is one): the standard ``normal [r, M]`` numbers, the same for
        both models, add what is missing to the accuracy of equal-width bins.
        """
        wrong, right = (torch.from_numpy(self.places @ counts).double() / total).T.unflatten(1, (-1, 2)).unbind(2)
        mass = wrong + right
        by_width, by_mass = (right + mass * shift for shift in (self.shift_by_width, self.shift_by_mass))
        worst = by_width + mass * self.lacking * normal[:, self.levels.bin_index]
        rights = {None: right, "width": by_width, "mass": by_mass, "worst": worst}
        of_levels = ((key, metric.of_levels, rights[metric.shrinks]) for key, metric in self.metrics.items())
        return {key: value(self.levels, mass, shrunk) for key, value, shrunk in of_levels if value is not None}

    def by_chance(self, rows: Rows, weights: Tensor, uniform: Tensor, values: Mapping[str, float]) -> dict[str, Tensor]:
        """Calibration errors ``[R]`` if, in ``rows [n]``, the event occurs where ``uniform [n, R]`` is below its chance."""
        levels, chance = self.levels, self.confidence[rows].float().unsqueeze(1)
        residual = ((uniform < chance).float() - chance).numpy()
        noise = _by_block(weights, self.level[rows], np.arange(len(rows)), shape=(len(levels), len(rows))) @ residual
        right = levels.share * levels.confidence + torch.from_numpy(noise.T).double()
        of_levels = ((key, metric.of_levels) for key, metric in self.metrics.items() if metric.is_calibration)
        # Levels join examples that are close, so they may show less of an error than the ``values`` of the examples.
        rights = torch.cat([levels.share.unsqueeze(0) * levels.accuracy, right])
        found = {key: of(levels, levels.share.expand_as(rights), rights) for key, of in of_levels if of is not None}
        return {key: drawn[1:] + (values[key] - drawn[0]) for key, drawn in found.items()}


class Sample:
    """The examples of one model, prepared so that scores of resamples are matrix products."""

    def __init__(self, predictions: Predictions, *, n_bins: int, block: Rows) -> None:
        summary = summarize(predictions, n_bins=n_bins, keep=None)
        self.predictions, self.n_bins = predictions, n_bins
        self.values, self.size = values_of(summary, predictions), summary.effective_n
        # Only their proportions count, and single precision ends at 3e38. A power of two moves no digit.
        mass = summary.examples.mass
        self.weights = weights = mass / 2.0 ** math.floor(math.log2(float(mass.max())))
        metrics = score_metrics(positive=True).items()
        self.views = [
            View(seen, weights, block, {key: metric for key, metric in metrics if metric.positive == (seen is not summary)})
            for seen in (summary, summary.positive)
            if seen is not None
        ]
        nll, brier = nll_and_brier(predictions)
        # Where some log-likelihood is infinite so is the difference, and no resample is asked.
        values = [torch.ones_like(brier), nll.where(nll.isfinite(), 0.0), brier]
        self.sums = _sum_blocks(torch.stack(values, dim=1) * weights[:, None], block)
        self.classes, self.totals = _class_residuals(predictions, weights, n_bins, block)
        count, confidence, correct = summary.by_class
        mean, gap = confidence / count.where(count > 0, 1.0), (confidence - correct) / summary.weight
        self.class_shift = _shrinkage(gap, count / summary.weight * mean * (1 - mean) / self.size)

    def scores(self, counts: Array, normal: Tensor) -> dict[str, Tensor]:
        """Score resamples in which blocks of examples are drawn ``counts [B, r]`` times; key → ``[r]``."""
        # Some versions of BLAS report invalid values and overflow in small products where there are none.
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            total, nll, brier = torch.from_numpy(self.sums @ counts).double()
            above, totals = (torch.from_numpy(matrix @ counts) for matrix in (self.classes, self.totals))
        above = above.unflatten(0, (len(totals), -1))
        residual = torch.cat([(totals - above.sum(1)).unsqueeze(1), above], dim=1) / total - self.class_shift.unsqueeze(2)
        found = {
            "nll": nll / total,
            "brier": brier / total,
            "classwise_ece": residual.abs().sum((0, 1)) / len(totals),
        }
        for view in self.views:
            found |= view.scores(counts, total, normal)
        return found

    def by_chance(self, rows: Rows, uniform: Tensor, turned: Tensor) -> dict[str, Tensor]:
        """Calibration errors ``[R]`` of a calibrated model with the probabilities of some ``rows [n]``.

        Labels are drawn by the numbers ``uniform [n, R]``; the top class is right where ``turned [n, R]`` is below confidence.
        """
        weights = self.weights[rows]
        # Fewer examples scatter more.
        weights = weights / self.weights.sum() * (self.weights.square().sum() / weights.square().sum()).sqrt()
        found = {"classwise_ece": _classwise_by_chance(self.predictions, rows, weights, uniform, self.n_bins)}
        for view, numbers in zip(self.views, (turned, uniform), strict=False):
            found |= view.by_chance(rows, weights, numbers, self.values)
        return found


def _classwise_by_chance(predictions: Predictions, rows: Rows, weights: Tensor, uniform: Tensor, n_bins: int) -> Tensor:
    """Classwise ECE ``[R]`` of some ``rows [n]`` with labels drawn from their probabilities by numbers ``uniform [n, R]``."""
    classes = predictions.num_classes
    # With many classes, being a sum of many parts, it is known from fewer draws.
    uniform = uniform[:, : max(_CHUNK_COUNTS // (classes * n_bins), 20)]
    draws = uniform.shape[1]
    residual = torch.zeros(classes * n_bins * draws, dtype=torch.float64)
    for part in torch.arange(len(rows)).split(max(CHUNK_ENTRIES // classes, 1)):
        probs, own = predictions.probs[rows[part.numpy()]], weights[part].unsqueeze(1)
        slot = equal_width_index(probs.double(), n_bins, dtype=probs.dtype) + n_bins * torch.arange(classes)
        expected = torch.bincount(slot.flatten(), (own * probs).flatten(), classes * n_bins)
        labels = torch.searchsorted(probs.double().cumsum(1).float(), uniform[part].contiguous()).clamp_max(classes - 1)
        place = slot.gather(1, labels) * draws + torch.arange(draws)
        residual += torch.bincount(place.flatten(), own.expand_as(place).flatten(), len(residual))
        residual -= expected.repeat_interleave(draws)
    return residual.view(-1, draws).abs().sum(0) / classes


def _draw_counts(n: int, *, n_resamples: int, seed: int) -> Iterator[Array]:
    """How often each of ``n`` examples or blocks is drawn, ``[n, r]`` float32, some resamples at a time."""
    rng = np.random.default_rng(seed)
    at_once = max(_CHUNK_COUNTS // n, 1)
    for at in range(0, n_resamples, at_once):
        size = (n, min(at_once, n_resamples - at))
        counts = _HOW_OFTEN[rng.integers(0, 65536, size=size, dtype=np.uint16)]
        # A resample of no example at all says nothing; it may come up where there are few.
        counts[:, counts.sum(0) == 0] = 1
        yield counts


def _by_block(values: Tensor, row: Tensor, block: Rows, *, shape: tuple[int, int]) -> csr_matrix:
    """Sum ``values [K]`` by row and block; sparse, of the ``shape`` [rows, B]."""
    from scipy.sparse import csr_matrix

    return csr_matrix((values.float().numpy(), (row.numpy(), block)), shape=shape)


def _sum_blocks(values: Tensor, block: Rows) -> Array:
    """Sum ``values [N, K]`` over the examples of each block: ``[K, B]``."""
    sums = values.new_zeros(int(block.max()) + 1, values.shape[1]).index_add_(0, torch.from_numpy(block), values)
    return sums.T.contiguous().float().numpy()


def _class_residuals(predictions: Predictions, weights: Tensor, n_bins: int, block: Rows) -> tuple[csr_matrix, Array]:
    """Probability minus one-hot label, by block: ``[C·(M - 1), B]`` of those not in the first bin, and of all ``[C, B]``.

    Most probabilities are in the first bin, whose residual is what the others leave of the total.
    """
    probs, labels, inner = predictions.probs, predictions.labels, max(n_bins - 1, 1)
    number, column = (probs > float(equal_width_edges(n_bins, probs.dtype)[1])).nonzero(as_tuple=True)
    values = probs[number, column].double()
    slot = column * inner + equal_width_index(values, n_bins, dtype=probs.dtype) - 1
    residual = (values - (labels[number] == column).double()) * weights[number]
    above = _by_block(residual, slot, block[number.numpy()], shape=(predictions.num_classes * inner, int(block.max()) + 1))
    totals = probs.float() * weights.float()[:, None]
    totals[torch.arange(len(totals)), labels] -= weights.float()
    return above, _sum_blocks(totals, block)


def _shrinkage(gap: Tensor, variance: Tensor) -> Tensor:
    """Part of each gap to take away: all of those that are no larger than chance makes them."""
    # The variance of a mean confidence that passes 1 by rounding is below 0: nothing is to be taken away then.
    return gap * (variance / gap.square().clamp_min(torch.finfo(gap.dtype).tiny)).clamp(0, 1)


def _widening(n: float) -> float:
    """How many times as far as resamples of ``n`` examples new ones may lie apart."""
    from scipy.special import stdtrit

    if n >= _FEW:
        return 1.0
    return math.inf if n < _LEAST else math.sqrt(n / (n - 1)) * float(stdtrit(n - 1, 0.975)) / NORMAL_95


def _compare(difference: float, drawn: Tensor, *, most: float, wider: float) -> Paired:
    if not math.isfinite(difference) or not bool(drawn.isfinite().all()):
        # A score that is infinite for one model is worse than any finite one; two infinite ones cannot be told apart.
        p_value = 1.0 if math.isnan(difference) else 1 / (1 + len(drawn))
        return Paired(difference, difference, difference, p_value)
    spread = (drawn - drawn.mean()).abs()
    half, difference = (v if abs(v) >= _NOTHING else 0.0 for v in (float(torch.quantile(spread, 0.95)), difference))
    if math.isinf(wider):
        return Paired(difference, -most, most, 1.0) if half or difference else Paired(0.0, 0.0, 0.0, 1.0)
    as_large = int((spread * wider >= abs(difference) - _ROUNDING).sum())
    half *= wider
    low, high = max(difference - half, -most), min(difference + half, most)
    return Paired(difference, low, high, (1 + as_large) / (1 + len(drawn)))


def _check_same_examples(first: Predictions, second: Predictions, *, where: str) -> None:
    facts = (
        (torch.tensor(given.scores.shape), given.labels, torch.ones(0) if given.weights is None else given.weights)
        for given in (first, second)
    )
    for name, one, two in zip(("[N, C]", "labels", "weights"), *facts, strict=True):
        if not torch.equal(one.double(), two.double()):
            raise ValueError(f"{where}: `second` must have the {name} of `first`, in the same order, got others.")


class Difference(NamedTuple):
    """How one row differs from another in one metric.

    Attributes:
        mean: Second minus first: over the seeds that both have, else the difference of their means.
        std: Standard deviation over those seeds, of two or more.
        n: Seeds that both have.
        p_value: Two-sided p-value, or None where nothing could be tested.
        over: What was sampled: "seeds" (paired t-test) or "examples" (paired bootstrap of one network each).
        values: The difference of every seed that both have, by rising seed.
    """

    mean: float
    std: float | None
    n: int
    p_value: float | None
    over: Literal["seeds", "examples"] | None
    values: tuple[float, ...] = ()


def compare_runs(
    first: Sequence[Entry], second: Sequence[Entry], metrics: Sequence[str], *, test: bool = True
) -> dict[str, Difference]:
    """Difference of the runs of two rows in several metrics, tested.

    With three or more seeds that both rows have, the differences per seed are tested against zero by Student's t. Where each
    row is a single run, of the same seed or of an unknown one, the two networks are tested on the same test examples by
    `paired_test`, if both predictions are there. The first says something about the methods, the
    second only about these two networks. What lies between is not tested: two seeds tell too little.

    Returns:
        Metric → difference.
    """
    pairs = _pairs(first, second)
    over_examples = _examples_test(pairs) if test and len(first) == len(second) == 1 else {}
    found = {}
    for key in metrics:
        if not all(key in entry.scores for entry in (*first, *second)):
            continue
        drawn = [b.scores[key].value - a.scores[key].value for a, b in pairs]
        mean, std = mean_and_std(drawn) if drawn else (math.nan, None)
        if not drawn:
            ones, twos = ([entry.scores[key].value for entry in runs] for runs in (first, second))
            mean = mean_and_std(twos)[0] - mean_and_std(ones)[0]
        over: Literal["seeds", "examples"] = "seeds" if len(pairs) >= LEAST_SEEDS else "examples"
        p_value = over_examples.get(key) if over == "examples" else paired_t(drawn) if test else None
        found[key] = Difference(mean, std, len(pairs), p_value, None if p_value is None else over, tuple(drawn))
    return found


def paired_t(differences: Sequence[float]) -> float | None:
    r"""Two-sided p-value of Student's t for differences :math:`d_1 … d_n` with mean zero, :math:`t = \bar d \sqrt n / s`.

    Returns:
        The p-value; 1 where all are zero, None where they are equal but not zero, or not finite, so that s says nothing.
    Reference:
        Student, Biometrika 1908.
    """
    from scipy.special import stdtr

    mean, std = mean_and_std(differences)
    if std is None:
        return None
    if std <= _NOTHING:
        return 1.0 if abs(mean) <= _NOTHING else None
    n = len(differences)
    return float(2 * stdtr(n - 1, -abs(mean) * math.sqrt(n) / std))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    r"""Correct p-values for their number: the k-th smallest of m becomes the largest of :math:`(m - j + 1)\, p_{(j)}, j \le k`.

    Returns:
        The corrected values, at most 1, in the given order.
    Reference:
        Holm, Scandinavian Journal of Statistics 1979.
    """
    known = sorted((value, place) for place, value in enumerate(p_values) if value is not None)
    found: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (value, place) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * value))
        found[place] = largest
    return found


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and, of two values or more, standard deviation (divided by n - 1)."""
    finite = all(value - value == 0 for value in values)
    # Of infinities of both signs `fmean` would raise.
    mean = statistics.fmean(values) if finite else sum(values) / len(values)
    return mean, statistics.stdev(values) if len(values) > 1 and finite else None


def _pairs(first: Sequence[Entry], second: Sequence[Entry]) -> list[tuple[Entry, Entry]]:
    ones, twos = ({entry.seed: entry for entry in runs if entry.seed is not None} for runs in (first, second))
    if not (ones and twos):
        # Where seeds are unknown, two single runs can still be compared on their examples.
        return [(first[0], second[0])] if len(first) == len(second) == 1 else []
    return [(entry, twos[seed]) for seed, entry in ones.items() if seed in twos]


def _examples_test(pairs: Sequence[tuple[Entry, Entry]]) -> dict[str, float]:
    for one, two in pairs:
        if one.test is not None and two.test is not None:
            with contextlib.suppress(ValueError):  # Not the same examples.
                found = paired_test(one.test, two.test)
                whole = not (one.is_top_label or two.is_top_label)
                return {key: pair.p_value for key, pair in found.items() if whole or is_top_label(key)}
    return {}
