"""Whether data named by a path are still those that a run was trained and tested on."""

from __future__ import annotations

from collections.abc import Mapping

from calibrant.data.image_set import difference, fingerprint
from calibrant.engine.recipe import DataPart
from calibrant.engine.setup import is_own, load_data


def known_data(facts: Mapping[str, object]) -> dict[str, object]:
    """What ``run.json`` says of the data of a run, in the form of `calibrant.data.image_set.fingerprint`; older ones say less.

    Example:
        >>> known_data({"inputs": {"num_classes": 3}, "examples": {"train": 130, "val": 14, "test": 36}})
        {'num_classes': 3, 'test_examples': 36}
    """
    kept = facts.get("data")
    if isinstance(kept, Mapping):
        return dict(kept)
    found: dict[str, object] = {}
    for key, place, name in (("num_classes", "inputs", "num_classes"), ("test_examples", "examples", "test")):
        values = facts.get(place)
        if isinstance(values, Mapping) and name in values:
            found[key] = values[name]
    return found


def check_same_data(then: Mapping[str, object], now: Mapping[str, object], part: DataPart, *, where: str) -> None:
    """Raise ``ValueError`` if a run would go on with other data than it began with.

    Args:
        then: Fingerprint of the data that it began with; empty where that was not kept.
        now: Fingerprint of the data at hand.
        part: What the recipe says of the data; published sets are taken to be what they are.
        where: What the run is kept in.
    """
    if is_own(part) and (differ := difference(then, now)):
        raise ValueError(
            f"train: `data` must be what {where} was trained on, got other data in {part.name}: {differ}. Put the old data "
            "back, or use another folder."
        )


def check_data_now(facts: Mapping[str, object], part: DataPart, *, where: str) -> None:
    """Read the data as they are now and raise as `check_same_data`; what can no longer be read is not compared.

    Args:
        facts: ``run.json`` of the run.
        part: What the recipe says of the data.
        where: Folder of the run.
    """
    if not is_own(part):
        return
    try:
        now = fingerprint(load_data(part))
    except (OSError, ValueError):
        # A finished run may outlive its data.
        return
    check_same_data(known_data(facts), now, part, where=where)
