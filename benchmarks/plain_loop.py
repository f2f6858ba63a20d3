"""The gamma-Net method as a training loop is usually written: what `benchmarks/train.py` compares the engine with.

Eager float32; batches are augmented by the workers of a `DataLoader` and copied to the device in every step; the look-ahead
step of the head is differentiated through by autograd (double backward); the network's own step runs the forward pass again
with the new hyper-parameters; the loss is read in every step.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from calibrant.data.image_set import ImageSet
from calibrant.engine.network import feature_function, find_head
from calibrant.losses import sece_penalty
from calibrant.meta import GammaFocal


class Examples(Dataset[tuple[Tensor, int]]):
    """Single examples, normalised, and cropped and mirrored at random if wanted."""

    def __init__(self, data: ImageSet, *, augment: bool) -> None:
        self.images = data.images.permute(0, 3, 1, 2).contiguous()
        self.labels, self.size, self.pad = data.labels.tolist(), data.size, data.pad if augment else 0
        self.flip = data.flip and augment
        self.mean, self.std = (torch.tensor(values).view(-1, 1, 1) for values in (data.mean, data.std))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        image = self.images[place].float() / 255
        if self.pad:
            top, left = torch.randint(0, 2 * self.pad + 1, (2,)).tolist()
            image = F.pad(image, (self.pad,) * 4)[:, top : top + self.size[0], left : left + self.size[1]]
        if self.flip and torch.rand(()) < 0.5:
            image = image.flip(2)
        return (image - self.mean) / self.std, self.labels[place]


def endless(data: ImageSet, *, batch_size: int, augment: bool, workers: int) -> Iterator[list[Tensor]]:
    """Batches for ever, every pass in a new order."""
    loader = DataLoader(
        Examples(data, augment=augment),
        batch_size=min(batch_size, len(data)),
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        persistent_workers=workers > 0,
    )
    while True:
        yield from loader


class PlainLoop:
    """Takes steps of FL_gamma with SECE, a meta update before each."""

    def __init__(
        self, model: nn.Module, train: ImageSet, meta: ImageSet, *, batch_size: int, meta_batch_size: int, workers: int
    ) -> None:
        self.model, self.device = model, next(model.parameters()).device
        self.forward, self.head = feature_function(model), find_head(model)[1]
        self.loss = GammaFocal()
        start = self.loss.init(self.head.in_features, self.head.out_features)
        self.hyper = {name: nn.Parameter(value.to(self.device)) for name, value in start.items()}
        self.adam = torch.optim.Adam(self.hyper.values(), lr=6e-5, betas=(0.5, 0.9), eps=1e-12)
        self.sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        self.batches = endless(train, batch_size=batch_size, augment=True, workers=workers)
        self.meta_batches = endless(meta, batch_size=meta_batch_size, augment=False, workers=workers)
        self.seen = 0.0

    def step(self) -> None:
        """One meta update and one step of the network."""
        x, y, x_meta, y_meta = (value.to(self.device) for value in (*next(self.batches), *next(self.meta_batches)))
        features, logits = self.forward(x)
        head = dict(self.head.named_parameters())
        inner = self.loss.loss(self.hyper, features, logits, y, head).mean()
        grads = torch.autograd.grad(inner, list(head.values()), create_graph=True)
        weight, bias = (value - 0.1 * grad for value, grad in zip(head.values(), grads, strict=True))
        outer = sece_penalty(F.linear(self.forward(x_meta)[0], weight, bias), y_meta)
        self.adam.zero_grad()
        outer.backward()
        self.adam.step()
        self.sgd.zero_grad()
        features, logits = self.forward(x)
        loss = self.loss.loss(self.hyper, features, logits, y, head).sum()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)
        self.sgd.step()
        self.seen += loss.item()
