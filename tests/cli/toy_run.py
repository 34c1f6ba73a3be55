"""A run that is made in an instant: one version, one small layer, a real log."""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model

from hilosync import AdamW, Learner
from hilosync.compress import Dense


def begin_small_run(folder) -> Learner:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4))
    model.config = {"model_type": "toy"}
    peft_model = get_peft_model(model, LoraConfig(r=2, target_modules=["0"]))
    learner = Learner(peft_model, optimizer=AdamW(lr=1e-2), compressor=Dense(), log=f"file:{folder}")
    peft_model(torch.ones(3, 8)).sum().backward()
    learner.step()
    return learner
