"""What holds for every test."""

from __future__ import annotations

import torch

# The tests' tensors are small, and several workers share the machine: handing some twenty numbers to a second thread makes a
# gradient check ten times slower.
torch.set_num_threads(1)
