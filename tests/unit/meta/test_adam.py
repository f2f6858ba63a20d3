import torch

from calibrant.meta.adam import adam_update, init_adam


def test_adam_update_equals_torch_adam_over_steps():
    generator = torch.Generator().manual_seed(0)
    params = {"a": torch.randn(3, 2, generator=generator), "b": torch.randn(4, generator=generator)}
    twins = {name: value.clone().requires_grad_() for name, value in params.items()}
    optimizer = torch.optim.Adam(twins.values(), lr=0.01, betas=(0.5, 0.9), eps=1e-12)
    state = init_adam(params)
    for _ in range(20):
        grads = {name: torch.randn(value.shape, generator=generator) for name, value in params.items()}
        params, state = adam_update(params, grads, state, lr=0.01, betas=(0.5, 0.9), eps=1e-12)
        for name, twin in twins.items():
            twin.grad = grads[name]
        optimizer.step()
    for name, twin in twins.items():
        torch.testing.assert_close(params[name], twin.detach(), rtol=1e-5, atol=1e-6)
    assert float(state.steps) == 20


def test_adam_update_does_not_write_into_its_arguments():
    params = {"a": torch.ones(2)}
    state = init_adam(params)
    adam_update(params, {"a": torch.ones(2)}, state, lr=0.1)
    assert params["a"].tolist() == [1, 1]
    assert float(state.steps) == 0
    assert state.first["a"].tolist() == [0, 0]


def test_adam_update_gradient_not_finite_changes_nothing():
    params = {"a": torch.ones(2), "b": torch.ones(1)}
    start = adam_update(params, {"a": torch.ones(2), "b": torch.ones(1)}, init_adam(params), lr=0.1)
    bad = {"a": torch.tensor([1.0, float("inf")]), "b": torch.ones(1)}
    after, state = adam_update(*start[:1], bad, start[1], lr=0.1)
    assert torch.equal(after["a"], start[0]["a"])
    assert torch.equal(after["b"], start[0]["b"])
    assert float(state.steps) == 1
    assert torch.equal(state.second["b"], start[1].second["b"])


def test_adam_update_tiny_gradient_moves_as_far_as_a_large_one():
    params = {"a": torch.zeros(2)}
    for size in (1e3, 1e-9):
        moved, _ = adam_update(params, {"a": torch.full((2,), size)}, init_adam(params), lr=0.1, eps=1e-12)
        torch.testing.assert_close(moved["a"], torch.full((2,), -0.1), rtol=2e-3, atol=0)
