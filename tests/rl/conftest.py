from __future__ import annotations

import pytest
import torch

from hilosync.rl.policy import attach_adapter
from hilosync.rl.tasks.compact import CompactKnights, compact_tokenizer


def random_model(seed: int, layers: int = 2):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(compact_tokenizer()),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
        initializer_range=0.3,  # far from uniform, so that a wrong mask or position shows
    )
    return Qwen3ForCausalLM(config).eval().requires_grad_(False)


@pytest.fixture(scope="session")
def tokenizer():
    return compact_tokenizer()


@pytest.fixture(scope="session")
def task():
    return CompactKnights(people=2)


@pytest.fixture(scope="session")
def model():
    return random_model(0)


@pytest.fixture
def student():
    torch.manual_seed(1)
    peft_model = attach_adapter(random_model(0), rank=4, alpha=4)
    for name, parameter in peft_model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return peft_model


@pytest.fixture(scope="session")
def teacher():
    return random_model(2)
