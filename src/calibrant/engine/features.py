"""Features and logits of any network that ends in a linear layer."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from calibrant.backbones.classifier import Classifier

FeatureFunction = Callable[[Tensor], tuple[Tensor, Tensor]]


def find_head(model: nn.Module) -> tuple[str, nn.Linear]:
    """Return name and module of the classifier: ``head`` if there is one, else the last linear layer that is registered."""
    named = dict(model.named_modules())
    if isinstance(named.get("head"), nn.Linear):
        head = named["head"]
        assert isinstance(head, nn.Linear)
        return "head", head
    linear = [(name, module) for name, module in named.items() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError("find_head: the model must end in an `nn.Linear`, got none.")
    return linear[-1]


def feature_function(model: nn.Module) -> FeatureFunction:
    """Return a function that maps images to ``(features, logits)`` of ``model``.

    A `Classifier` says what its features are; of any other network they are the input of its last linear layer, seen by a hook.
    """
    if isinstance(model, Classifier):

        def direct(images: Tensor) -> tuple[Tensor, Tensor]:
            features = model.features(images)
            return features, model.head(features)

        return direct
    name, head = find_head(model)

    def hooked(images: Tensor) -> tuple[Tensor, Tensor]:
        seen: list[Tensor] = []
        handle = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            logits = model(images)
        finally:
            handle.remove()
        if not seen:
            raise ValueError(
                f"feature_function: the model's last linear layer must be used in its forward pass, got {name!r}, which is "
                "not. Name the classifier `head`, or register it last."
            )
        return seen[-1], logits

    return hooked
