"""Models by name, path or hub id, and the LoRA adapter that is trained on them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hilosync.errors import ConfigurationError, ModelNotFound

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["LINEARS", "TINY_MODELS", "attach_adapter", "load_model", "load_tokenizer", "locate_model"]

_MODELS = Path(__file__).parent / "models"
TINY_MODELS = ("tiny-kk-student", "tiny-kk-teacher")
"""Models inside this package, made by ``scripts/train_tiny_models.py``."""

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The seven linear layers of a transformer block."""


def locate_model(name: str) -> str:
    """What `from_pretrained` is given for a tiny model's name, a local path or a hub id.

    Raises:
        ModelNotFound: the name looks like a path, and there is no model there.
    """
    if name in TINY_MODELS:
        return str(_MODELS / name)
    path = Path(name).expanduser()
    if (path / "config.json").is_file():
        return str(path)
    if path.exists() or name.startswith(("/", ".", "~")) or name.count("/") != 1:
        raise ModelNotFound(
            f"no model at {name!r}: expected {' or '.join(TINY_MODELS)}, a folder with a config.json, "
            "or a hub id such as Qwen/Qwen3-0.6B"
        )
    return name


def _from_pretrained(loader: Any, name: str, **options: Any) -> Any:
    from transformers.utils import logging

    where, bars = locate_model(name), logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # it would tear the live table of a run
    try:
        return loader.from_pretrained(where, **options)
    # The hub client fails offline in several unrelated ways, most of them OSError or ValueError.
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelNotFound(f"could not load the model {name!r} ({where}): {reason}") from error
    finally:
        if bars:
            logging.enable_progress_bar()


def load_model(name: str, device: str = "cpu", dtype: torch.dtype | None = None) -> PreTrainedModel:
    """Loads a causal LM in evaluation mode, its weights frozen.

    Args:
        name: a tiny model's name, a local path or a hub id.
        device: where to put it.
        dtype: what it computes in; None is fp32 on a CPU (where bf16 is slow) and bf16 elsewhere.

    Raises:
        ModelNotFound: there is no such model, or it cannot be fetched; one line says which.
    """
    locate_model(name)
    from transformers import AutoModelForCausalLM

    if dtype is None:
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
    model = _from_pretrained(AutoModelForCausalLM, name, dtype=dtype)
    return model.to(device).eval().requires_grad_(False)


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a model; it always has a padding token.

    Raises:
        ModelNotFound: there is no such model, or it cannot be fetched; one line says which.
    """
    locate_model(name)
    from transformers import AutoTokenizer

    tokenizer = _from_pretrained(AutoTokenizer, name)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def attach_adapter(model: PreTrainedModel, rank: int = 64, alpha: int = 64) -> PeftModel:
    """Wraps a model with a trainable fp32 LoRA adapter on all seven linears of every block.

    Its initial values come from PEFT and torch's global generator; a run replaces them by the
    version 0 that its seed implies.

    Raises:
        ConfigurationError: the model has none of these layers, or the rank is not positive.
    """
    from peft import LoraConfig, get_peft_model

    if rank < 1:
        raise ConfigurationError(f"expected a LoRA rank of at least 1, got {rank}")
    present = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    targets = [name for name in LINEARS if name in present]
    if not targets:
        raise ConfigurationError(f"expected a model with layers named {', '.join(LINEARS)}; found none of them")
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets, task_type="CAUSAL_LM")
    with warnings.catch_warnings():
        # PEFT asks the model for a property that newer versions of transformers have renamed.
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
        adapted = get_peft_model(model, config)
    return adapted.eval()  # pyright: ignore[reportReturnType]
