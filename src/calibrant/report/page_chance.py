"""Which rows of a comparison its runs do not tell from the best. Tables mark differences by the same tests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from calibrant.core.words import SIGNIFICANT
from calibrant.metrics.differences import compare_runs, holm, welch_t
from calibrant.report.page_runs import Group


def labels_not_told(groups: Sequence[Group], leaders: Mapping[str, Group]) -> dict[str, list[str]]:
    """Find the rows that these runs do not tell from the best one of a metric.

    A pair that a table of these rows tests has the table's p-value, so that the two never contradict each other. Others are
    told apart by `calibrant.metrics.differences.compare_runs`, over seeds or over test examples; where that tests nothing, by
    Welch's t over their seeds; and a single run beside several, or without its predictions, by 95 % intervals that do not meet.
    The tests that are not the table's are corrected after Holm, those of a metric together.

    Args:
        groups: Rows of one place; a part of the test set is left out.
        leaders: Metric → its best row.

    Returns:
        Metric → labels of the rows, in their order, whose mean is not below that of the best.
    """
    tested: dict[tuple[int, int], dict[str, float | None]] = {}
    found = {}
    for key, best in leaders.items():
        above = [group for group in groups if _is_above(group, best, key)]
        told = [_in_table(best, group, key) for group in above]
        own = [group for group, p in zip(above, told, strict=True) if p is None]
        for group in own:
            if (id(best), id(group)) not in tested:
                tested[id(best), id(group)] = _p_values(best, group, list(leaders))
        corrected = iter(holm([tested[id(best), id(group)][key] for group in own]))
        found_p = [next(corrected) if p is None else p for p in told]
        unclear = [_meet(best, g, key) if p is None else not p < SIGNIFICANT for g, p in zip(above, found_p, strict=True)]
        found[key] = [group.label for group, is_unclear in zip(above, unclear, strict=True) if is_unclear]
    return found


def _is_above(group: Group, best: Group, key: str) -> bool:
    return group is not best and not group.size_note and bool(group.values(key)) and group.mean(key) >= best.mean(key)


def _in_table(best: Group, group: Group, key: str) -> float | None:
    """P-value of the pair in a table, where that tests one of the two against the other."""
    if best.told.section != group.told.section:
        return None
    return next((b.told.p_values.get(key) for a, b in ((best, group), (group, best)) if a.told.is_base), None)


def _p_values(best: Group, group: Group, keys: Sequence[str]) -> dict[str, float | None]:
    """P-value of the difference in each metric; None where nothing could be tested, or where intervals tell enough."""
    alone = len(best.entries) == len(group.entries) == 1
    if alone and not any(_meet(best, group, key) for key in keys):
        # Resampling would only take time.
        return dict.fromkeys(keys)
    found = compare_runs(best.entries, group.entries, keys)
    known = {key: found[key].p_value if key in found else None for key in keys}
    return {key: welch_t(best.values(key), group.values(key)) if p is None else p for key, p in known.items()}


def _meet(best: Group, group: Group, key: str) -> bool:
    """Whether the 95 % intervals of any two runs of the two rows meet."""
    highest = max((entry.scores[key].high for entry in best.entries if key in entry.scores), default=math.nan)
    return any(entry.scores[key].low <= highest for entry in group.entries if key in entry.scores)
