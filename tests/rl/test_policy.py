from __future__ import annotations

import pytest
import torch

from hilosync.errors import ConfigurationError, ModelNotFound
from hilosync.rl.policy import TINY_MODELS, attach_adapter, load_model, load_tokenizer, locate_model


@pytest.mark.parametrize("name", TINY_MODELS)
def test_the_tiny_models_load_by_name_and_by_path_and_compute_in_fp32(name):
    model, tokenizer = load_model(name), load_tokenizer(locate_model(name))
    assert model.dtype == torch.float32 and not model.training
    assert model.config.vocab_size == len(tokenizer)
    assert tokenizer.padding_side == "left" and tokenizer.pad_token_id is not None
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_the_adapter_covers_the_seven_linears_and_nothing_else():
    model = attach_adapter(load_model("tiny-kk-student"))
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert len(trainable) == model.config.num_hidden_layers * 7 * 2
    assert all(64 in p.shape and p.dtype == torch.float32 for p in trainable.values())
    assert model.peft_config["default"].lora_alpha == 64


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "tiny-kk-master", "a/b/c"])
def test_a_missing_model_is_one_clear_line(name):
    for load in (load_model, load_tokenizer):
        with pytest.raises(ModelNotFound, match="no model at") as caught:
            load(name)
        assert "\n" not in str(caught.value) and "tiny-kk-student" in str(caught.value)


def test_a_folder_that_holds_no_weights_is_one_clear_line(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(ModelNotFound, match="could not load the model") as caught:
        load_model(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_hub_id_that_cannot_be_fetched_is_one_clear_line(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFound, match="nobody/nothing") as caught:
        load_model("nobody/nothing")
    assert "\n" not in str(caught.value)


def test_a_model_without_linears_is_refused():
    with pytest.raises(ConfigurationError, match="layers named"):
        attach_adapter(torch.nn.Sequential(torch.nn.ReLU()))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="rank of at least 1"):
        attach_adapter(torch.nn.Sequential(), rank=0)  # type: ignore[arg-type]
