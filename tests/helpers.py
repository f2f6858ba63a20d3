"""Shared inputs of the tests."""

from __future__ import annotations

import multiprocessing
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn


def reserved_port() -> int:
    """A port of the loopback interface that a server may take and that nobody else is given for a minute.

    A port that was merely free a moment ago may be another test's by the time it is used. One whose last connection the server
    has closed is kept by the system for those who name it.
    """
    with socket.socket() as server, socket.socket() as client:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        client.connect(server.getsockname())
        accepted, _ = server.accept()
        accepted.close()
        return int(server.getsockname()[1])


def board_images(folder: Path) -> dict[str, list[int]]:
    """Steps of the images in a folder of TensorBoard events, by tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"images": 0})
    events.Reload()
    return {tag: [image.step for image in events.Images(tag)] for tag in events.Tags()["images"]}


def start_ranks(work: Callable[..., None], *args: object, load: str, join: bool = True) -> Any:
    """Run ``work`` in two processes, with its rank before ``args``.

    They are copies of one that has loaded a module, which takes longer than what they do.
    """
    multiprocessing.set_forkserver_preload([load])
    return torch.multiprocessing.start_processes(work, args=args, nprocs=2, join=join, start_method="forkserver")


def golden() -> tuple[Tensor, Tensor]:
    """Logits ``[24, 5]`` (float64) and labels of the golden values: a third of the predictions wrong, gaps of both signs."""
    i = torch.arange(24, dtype=torch.float64).unsqueeze(1)
    k = torch.arange(5, dtype=torch.float64).unsqueeze(0)
    logits = 3 * torch.sin(1.7 * i + 0.9 * k**2) + 0.5 * torch.cos(i * k)
    predicted = logits.argmax(1)
    row = torch.arange(24)
    labels = torch.where(row % 3 == 2, (predicted + 1 + row % 4) % 5, predicted)
    return logits, labels


def mixed_gaps(
    n: int = 2000, num_classes: int = 10, *, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Probabilities and labels whose confidence is too high in some places and too low in others.

    On uniformly over-confident data all binnings agree and hide bugs, so the true label is drawn from a distorted posterior:
    sharper than the stated one for even classes, flatter for odd ones.
    """
    generator = torch.Generator().manual_seed(seed)
    logits = 2.0 * torch.randn(n, num_classes, generator=generator, dtype=torch.float64)
    top = logits.argmax(1)
    scale = torch.where(top % 2 == 0, 1.6, 0.6).unsqueeze(1)
    labels = torch.multinomial((logits * scale).softmax(1), 1, generator=generator).squeeze(1)
    return logits.softmax(1).to(dtype), labels


def with_confidence(confidence: list[float], correct: list[int]) -> tuple[Tensor, Tensor]:
    """Two-class logits ``[N, 2]`` (float64) whose top probabilities, at least 1/2, and correctness are as given."""
    odds = torch.logit(torch.tensor(confidence, dtype=torch.float64))
    return torch.stack([odds, torch.zeros_like(odds)], 1), 1 - torch.tensor(correct)


def hard_gaps(n: int = 200, num_classes: int = 4, *, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """`mixed_gaps` with a quarter of the examples saturated at 1, a quarter on bin edges k/M and a quarter tied.

    Below 0.8 the edge examples are right more often than they say, above less often, so that neighbouring bins have gaps of
    opposite sign and an example on the wrong side of an edge shows.
    """
    probs, labels = mixed_gaps(n, num_classes)
    quarter, row = n // 4, torch.arange(n)
    probs[:quarter] = torch.eye(num_classes, dtype=torch.float64)[row[:quarter] % num_classes]
    for i in range(quarter, 2 * quarter):
        n_bins = (5, 10, 15, 20, 30, 49)[i % 6]
        top = (n_bins // 2 + 1 + i % (n_bins // 2)) / n_bins
        probs[i] = (1 - top) / (num_classes - 1)
        probs[i, i % num_classes] = top
    probs[2 * quarter : 3 * quarter] = probs[-1]
    predicted = probs.argmax(1)
    right = torch.where(probs.amax(1) < 0.8, row % 7 > 0, row % 3 > 0)
    changed = row < 3 * quarter
    labels = torch.where(
        changed, torch.where(right, predicted, (predicted + 1 + row % (num_classes - 1)) % num_classes), labels
    )
    return probs.to(dtype), labels


def run_command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run ``calibrant`` in this process; return its exit code, output and errors."""
    from calibrant.cli import main

    shown = warnings.showwarning
    with pytest.raises(SystemExit) as ended:
        main.run([str(argument) for argument in arguments])
    warnings.showwarning = shown
    out, err = capsys.readouterr()
    return int(str(ended.value.code)), out, err


def convolve_contiguously(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let convolutions give gradients in the contiguous layout, whatever that of the weights, as cuDNN does in float64."""

    def forward(self: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        plain = torch.contiguous_format
        x, weight = x.contiguous(memory_format=plain), weight.contiguous(memory_format=plain)
        return F.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)

    monkeypatch.setattr(nn.Conv2d, "_conv_forward", forward)


def layout(tensor: Tensor) -> tuple[torch.dtype, list[int]]:
    """What fused optimizers want alike in parameter, gradient and state: type, and strides where a dimension has any."""
    return tensor.dtype, [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1]


class Handler(BaseHTTPRequestHandler):
    """Sends the files of `serve_files`, of which ``cut`` says how much comes before the line breaks."""

    server: Any

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers.get("Range")
        server.asked.append(wanted)
        content = server.files.get(self.path[1:])
        if content is None:
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and server.ranges else 0
        if start > len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = server.cut.pop(0) if server.cut else len(content)
        self.wfile.write(content[start:end])
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve_files(files: dict[str, bytes]) -> Iterator[Any]:
    """Serve files from the loopback interface; the server counts what is asked and can refuse ranges or break off."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as started:
        server: Any = started
        server.files, server.ranges, server.cut, server.asked = files, True, [], []
        server.address = f"http://127.0.0.1:{started.server_port}"
        thread = threading.Thread(target=started.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        started.shutdown()
        thread.join()
