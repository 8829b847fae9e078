"""Loads an export as an ordinary transformers model that applies its mask wherever it is called."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NoReturn

from transformers import PreTrainedConfig, PreTrainedModel

from attnprobe.attention.session import IMPLEMENTATION, under_stock_name
from attnprobe.checkpoint.loading import load_model
from attnprobe.checkpoint.locate import locate
from attnprobe.checkpoint.opening import read_source
from attnprobe.errors import CheckpointError, UsageError
from attnprobe.export.attaching import attached
from attnprobe.export.folders import merged
from attnprobe.export.format import RECORD, Applied, read_applied
from attnprobe.export.writing import complete

_OURS = {
    "attn_implementation": "the mask is applied by attnprobe's own attention; choose it with `backend`",
    "output_loading_info": "attnprobe reads the loading info itself, and refuses weights that are missing",
}
"""Keywords of ``from_pretrained`` that can't be given, and why."""


def load(
    directory: str | PathLike[str],
    *,
    backend: str = "eager",
    device_map: Any = None,
    trust_remote_code: bool = False,
    **from_pretrained: Any,
) -> PreTrainedModel:
    """Load an export: an ordinary transformers model with the export's mask applied.

    The model has the head class that the export names, is in eval mode, and applies the mask in forward, in training
    and in ``generate``, with padding on any side. ``save_pretrained`` writes an export again; ``copy.deepcopy`` gives a
    masked copy. Pickling, and setting another attention implementation, would lose the mask and are errors.

    Args:
        directory: the export, or its id on the Hugging Face hub.
        backend: ``eager``, which can return the masked attentions (``output_attentions=True``), or ``sdpa``.
        device_map: as in ``from_pretrained``.
        trust_remote_code: run Python code that comes with the checkpoint.
        **from_pretrained: further keywords of ``from_pretrained``, such as ``dtype``.

    Raises:
        CheckpointError: not an export, or one with a file that is missing, altered or corrupt.
        UnsupportedModelError: the model's attention can't be reached.
        UsageError: an unknown backend, or a keyword that can't be given.
    """
    for name, reason in _OURS.items():
        if name in from_pretrained:
            raise UsageError(f"attnprobe.load takes no {name}: {reason}")
    name, options = fspath(directory), dict(from_pretrained)
    folder = locate(name, trust_remote_code=trust_remote_code).folder
    dtype = options.pop("dtype", options.pop("torch_dtype", "auto"))
    if device_map is not None:
        options["device_map"] = device_map
    source = read_source(name, folder, dtype, trust_remote_code=trust_remote_code, options=options)
    applied = read_applied(folder, [folder / "config.json", *source.weights.files])
    if applied is None:
        raise CheckpointError(
            f"{name} is no export of attnprobe, it has no {RECORD}: load it with transformers' from_pretrained, or, if "
            "it was one, export it again"
        )
    model, _, _ = load_model(source)
    Masked(model.eval(), applied, backend=backend).enter()
    return model


def unload(model: PreTrainedModel) -> None:
    """Take the mask off a model made by :func:`load`: what is left is the dense model, as transformers loads it.

    Raises:
        UsageError: the model was not made by :func:`load`, or is unloaded already.
    """
    masked = model.__dict__.get(_NAME)
    if masked is None:
        raise UsageError("the model has no mask to take off: it was not made by attnprobe.load, or is unloaded already")
    masked.leave()


_NAME = "_attnprobe"


class Masked:
    """What keeps a model masked. It belongs to its model, and is freed with it.

    While it is in force, some of the model's methods are its own: ``save_pretrained``, and those that copying and
    pickling ask for.

    Attributes:
        model: the model.
        applied: what is applied to it.
        backend: of its attention.
    """

    def __init__(self, model: PreTrainedModel, applied: Applied, *, backend: str) -> None:
        self.model = model
        self.applied = applied
        self.backend = backend
        self._in_force = ExitStack()

    def enter(self) -> None:
        """Mask the model."""
        own = {
            _NAME: self,
            "save_pretrained": self.save_pretrained,
            "__deepcopy__": self.deepcopy,
            "__reduce_ex__": self.refuse_to_pickle,
        }
        with ExitStack() as stack:
            stack.enter_context(attached(self.model, self.applied, backend=self.backend))
            stack.callback(self.model.base_model.register_forward_pre_hook(_requiring_mask(self.model.config)).remove)
            for name, value in own.items():
                self.model.__dict__[name] = value
                stack.callback(self.model.__dict__.pop, name, None)
            self._in_force = stack.pop_all()

    def leave(self) -> None:
        """Give the model back as it was."""
        self._in_force.close()

    @contextmanager
    def _suspended(self) -> Iterator[None]:
        self.leave()
        try:
            yield
        finally:
            self.enter()

    def deepcopy(self, memo: dict[int, Any]) -> PreTrainedModel:
        """A masked copy, as ``copy.deepcopy`` asks for it."""
        with self._suspended():
            twin = copy.deepcopy(self.model, memo)
        Masked(twin, self.applied, backend=self.backend).enter()
        return twin

    def refuse_to_pickle(self, protocol: Any) -> NoReturn:
        """What pickling asks for. Raises: UsageError."""
        del protocol
        raise UsageError(
            "a masked model can't be pickled: write it with `model.save_pretrained(folder)` and read it with "
            "`attnprobe.load(folder)`, or save its `state_dict()`"
        )

    def save_pretrained(
        self,
        save_directory: str | PathLike[str],
        is_main_process: bool = True,
        *,
        push_to_hub: bool = False,
        **options: Any,
    ) -> None:
        """Write the model, as transformers does, and with it what is applied: an export of the model as it is now.

        Args:
            save_directory: the folder; what is in it and has other names stays.
            is_main_process: as in transformers.
            push_to_hub: not supported.
            **options: as in transformers.

        Raises:
            UsageError: ``push_to_hub``.
        """
        if push_to_hub:
            raise UsageError(
                "a masked model is not pushed while it is saved, or its mask would stay behind: save it, "
                "and upload the folder with `hf upload`"
            )
        save = type(self.model).save_pretrained
        if not is_main_process:
            save(self.model, save_directory, is_main_process=False, **options)
            return
        with merged(Path(save_directory)) as folder, under_stock_name(self.model):
            save(self.model, folder, **options)
            complete(folder, self.applied)


def _requiring_mask(config: PreTrainedConfig) -> Callable[..., None]:
    """A hook that sees that attention still goes through the mask. It holds no module, so that parts can be copied."""

    def require(*_: Any) -> None:
        if config._attn_implementation != IMPLEMENTATION:
            raise UsageError(
                f"the attention implementation of a masked model was set to {config._attn_implementation!r}, which "
                "knows no mask: load it with `attnprobe.load(..., backend=...)`, or take the mask off with "
                "`attnprobe.unload(model)`"
            )

    return require
