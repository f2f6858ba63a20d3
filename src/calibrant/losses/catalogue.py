"""The document of all objectives, ``docs/losses.md``, written from the tables."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from calibrant.losses import LOSSES, PENALTIES
from calibrant.losses.base import Entry

_INTRODUCTION = """# Train-time objectives

Every objective is a function of `(logits, labels)` and a module over it. A loss gives one value per sample, `[B]`, and its
module reduces; a penalty gives one value for the batch. Modules add up, and the sum prints as it was written:

```python
>>> import torch
>>> from calibrant.losses import BrierLoss, FocalLoss
>>> loss = FocalLoss(gamma=3) + 0.5 * BrierLoss()
>>> loss
FocalLoss(gamma=3) + 0.5 * BrierLoss()
>>> loss(torch.zeros(2, 4), torch.tensor([0, 3]))
tensor(0.9598)

```

- `reduction` is `"mean"`, `"sum"` or `"none"`. A weight means the same under each: a penalty enters a sum over samples
  multiplied by the batch size, and with `"none"` every sample carries the whole penalty.
- What an objective needs besides logits and labels is passed by keyword (`loss(logits, labels, indices=indices)`), also
  through a sum. `set_epoch(epoch)` may be called on any; those that follow a schedule listen.
- float16 and bfloat16 logits are computed, and the loss returned, in float32; float64 stays float64.
- Nothing reads a value back from the device (but for `ignore_index`, below), so every objective compiles with
  `fullgraph=True` and fits into a CUDA graph.

The docstring of each function has its formula, and where the released code of its authors departs from their paper.
References name an equation, a section or an algorithm where the text of the paper could be checked or its authors' repository
names it; "as others cite it" marks a number taken from work that cites the paper. For the rest, the exact definition is in the
file named as the authors' code.
`calibrant.losses.LOSSES` and `PENALTIES`, from which this page is written, map the names to the entries.

## Padding, weights, segmentation

Every module takes what `torch.nn.CrossEntropyLoss` takes: dense logits `[B, C, d1, ...]` with labels `[B, d1, ...]`, of which
every position is a sample; `ignore_index`, the label of samples to leave out; and, if it is a loss, a `weight` for every class.

```python
>>> from calibrant.losses import CrossEntropyLoss, MDCA
>>> logits = torch.randn(2, 5, 4, 4)  # two images of 4 x 4 pixels
>>> labels = torch.randint(0, 5, (2, 4, 4))
>>> labels[:, 0] = -100  # a row of pixels without a label
>>> loss = FocalLoss(gamma=3, weight=torch.tensor([0.2, 1.0, 1.0, 2.0, 2.0])) + 0.5 * MDCA(ignore_index=-100)
>>> loss(logits, labels).shape, FocalLoss(reduction="none", ignore_index=-100)(logits, labels).shape
(torch.Size([]), torch.Size([2, 4, 4]))
>>> ours, torchs = CrossEntropyLoss(ignore_index=-100), torch.nn.CrossEntropyLoss(ignore_index=-100)
>>> torch.allclose(ours(logits, labels), torchs(logits, labels))
True

```

- Of tokens `[B, T, C]` the classes come last: pass `logits.movedim(-1, 1)`.
- `ignore_index` is None unless given (torch's is -100), and then a label below 0 is an error. Means are over the samples
  that are left; with `"none"` the others are 0; where none is left everything is 0 (torch's mean is NaN). An `ignore_index`
  that one term of a sum has holds for all of them: samples are left out once.
- With `weight`, sample i counts `weight[labels[i]]` times: `"sum"` and `"none"` multiply by it, `"mean"` divides by its sum
  over the samples. In a sum it concerns the loss that has it. Penalties are about the batch as a whole and refuse it.
- `MixupLoss` takes dense logits, but neither of the two others, as a mixed sample has two labels. `CRL` leaves out the
  `indices` of ignored labels, also in `update`.
- The functions (`focal_loss`) take `[B, C]` and labels of classes only.
- Dense logits and weights compile and are captured like everything else. `ignore_index` asks the device how many samples
  are left: such a step waits for it, and is neither captured nor compiled as one graph.

## Modules with a state

Five need more than logits and labels, or to be told how training goes. What they keep is in their `state_dict`: save it with
the model's, and move them to its device (`loss.to(device)`).

```python
>>> from calibrant.losses import AdaFocalLoss, AvUC, ConfidencePruner, CRL, MixupLoss, mixup_inputs
>>> model = torch.nn.Linear(8, 3)
>>> x, y = torch.randn(60, 8), torch.arange(60) % 3
>>> x_val, y_val = torch.randn(40, 8), torch.arange(40) % 3
>>> loss = AdaFocalLoss() + CRL(num_samples=len(y)) + AvUC()  # AdaFocal starts with gamma 1 in every bin
>>> adafocal, crl, avuc = loss.objectives
>>> pruner = ConfidencePruner(num_samples=len(y), fraction=0.1, every=1)  # no loss: it says what to train on
>>> for epoch in range(2):
...     loss.set_epoch(epoch)  # CRL: so many epochs have ended
...     for indices in pruner.kept_indices().split(20):  # positions in the training set, which the data loader must give
...         logits = model(x[indices])
...         loss(logits, y[indices], indices=indices).backward()
...         crl.update(logits, y[indices], indices=indices)  # which were right
...         pruner.update(logits, indices=indices)
...     pruner.end_epoch()  # drops a tenth
...     bins = adafocal.update(model(x_val).softmax(1).detach(), y_val)  # validation data, never test data
...     avuc.update_threshold(model(x).detach(), y)  # the authors: after each of the first five epochs
>>> len(pruner.kept_indices()), loss.inputs
(49, ('indices',))
>>> mixed, labels_a, labels_b, lam = mixup_inputs(x, y, alpha=0.2)
>>> mixup = MixupLoss(base=FocalLoss(gamma=3))  # cross-entropy unless given
>>> mixup(model(mixed), labels_a, labels_b=labels_b, lam=lam).shape
torch.Size([])

```

Shuffle the batches of `CRL`: it compares neighbours. `ScheduledFocalLoss` too listens to `set_epoch`.

## Speed

`python benchmarks/losses.py` prints the time of every objective, forward and backward on one CPU thread, as a ratio to
`F.cross_entropy`, and compares three with a transcription of the code released with their papers. Focal loss with its
schedules, AvUC, MMCE and the confidence that most penalties start from have a closed form for eager CPU tensors: value and
gradient in numpy, as one step of autograd. Everything else, second derivatives, compiled and device tensors, function
transforms, runs on PyTorch's operations and agrees with it up to rounding.

| batch 512 | classes | published | `F.cross_entropy` | here | faster |
|---|---|---|---|---|---|
| AvUC | 10 | 24 ms | 0.16 ms | 0.27 ms | 80 to 90 x |
| AvUC | 100 | 23 ms | 0.12 ms | 0.34 ms | 62 to 66 x |
| weighted MMCE | 10 | 3.7 ms | 0.16 ms | 0.23 ms | 14 to 20 x |
| weighted MMCE | 100 | 3.9 ms | 0.12 ms | 0.32 ms | 10 to 12.5 x |
| FLSD | 10 | 1.4 ms | 0.16 ms | 0.13 ms | 10.4 to 10.7 x |
| FLSD | 100 | 1.45 ms | 0.12 ms | 0.19 ms | 7.5 to 8.2 x |

With 100 classes FLSD reaches a factor of 10 from a batch of 1,024 on (11 x; 15 x at 2,048). At 512 it cannot: a tenth of the
published loop is 0.145 ms. `F.log_softmax`, forward and backward, takes 0.13 ms of it, and numpy's exponentials, one scaling
of the rows and the call of autograd around them 0.085 ms; what is left is half of the time of the checks and of some thirty
operations on 512 numbers. With 1,000 classes the exponentials, which both forms have to take, outweigh the published loops:
25 x, 7 x and 3.7 x.

`CPC` is the slow one. Its exclusion term compares every pair of classes, B C²/2 terms that no shorter exact sum replaces: a
batch of 128 takes 0.7 ms with 10 classes, 8 ms with 100 and 0.4 s with 1,000 (512: 1.7 s), where cross-entropy takes less than
a millisecond. `CPC(bec_weight=0)` leaves that term out and takes 0.5 ms. With many classes choose another penalty.
"""


def losses_page() -> str:
    """Return the text of ``docs/losses.md``.

    Returns:
        Markdown: name, module, one line, inputs and defaults, their source, and reference of every table entry.

    Example:
        >>> "### `focal`" in losses_page()
        True
    """
    return "\n".join([_INTRODUCTION, _section("Per-sample losses", LOSSES), _section("Batch penalties", PENALTIES)])


def _section(title: str, table: Mapping[str, Entry]) -> str:
    parts = [f"## {title}\n"]
    for name, entry in table.items():
        lines = [
            f"### `{name}`",
            "",
            entry.summary,
            "",
            f"- `{entry.function.__name__}{_signature(entry)}`, module `{entry.module.__name__}`",
            f"- Defaults: {entry.source}",
            f"- Reference: {entry.reference}",
            f"- Authors' code: {entry.code or 'none known'}",
            "",
        ]
        parts.append("\n".join(lines))
    return "\n".join(parts)


def _signature(entry: Entry) -> str:
    parts = []
    for parameter in inspect.signature(entry.function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        default = parameter.default
        shown = getattr(default, "__name__", repr(default))
        parts.append(parameter.name if default is parameter.empty else f"{parameter.name}={shown}")
    return f"({', '.join(parts)})"
