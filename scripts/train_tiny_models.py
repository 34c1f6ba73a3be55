"""Makes the tiny Knights-and-Knaves teacher and student that the demo and the tests use.

OMP_NUM_THREADS=1 python scripts/train_tiny_models.py --out src/hilosync/rl/models
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from hilosync.rl.evaluation import evaluate
from hilosync.rl.tasks.compact import CompactKnights, compact_tokenizer

TASK = CompactKnights()
TOKENIZER = compact_tokenizer()
BATCH = 32
BUCKET = 16  # batches that are sorted by length together

Pair = tuple[list[int], list[int]]


def new_model(seed: int) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(TOKENIZER),
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=32,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            pad_token_id=TOKENIZER.pad_token_id,
            bos_token_id=None,
            eos_token_id=TOKENIZER.eos_token_id,
        )
    )


def demonstrations(count: int) -> list[Pair]:
    """Prompt and answer tokens of training problems, which are never held-out ones."""
    pairs = []
    for index in range(TASK.held_out, TASK.held_out + count):
        answer = f"{TASK.demonstrations(index)[0]} {TOKENIZER.eos_token}"
        pairs.append((TOKENIZER.encode(TASK.prompt(index)), TOKENIZER.encode(answer)))
    return pairs


def batches(pairs: list[Pair], seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless shuffled batches of (ids, labels), rows of like length together."""
    shuffle = random.Random(seed)
    while True:
        order = shuffle.sample(pairs, len(pairs))
        for start in range(0, len(order) - BATCH * BUCKET + 1, BATCH * BUCKET):
            chunk = sorted(order[start : start + BATCH * BUCKET], key=lambda pair: len(pair[0]) + len(pair[1]))
            groups = [chunk[i : i + BATCH] for i in range(0, len(chunk), BATCH)]
            for group in shuffle.sample(groups, len(groups)):
                width = max(len(prompt) + len(answer) for prompt, answer in group)
                ids = torch.full((BATCH, width), TOKENIZER.pad_token_id)
                labels = torch.full((BATCH, width), -100)
                for row, (prompt, answer) in enumerate(group):
                    end = len(prompt) + len(answer)
                    ids[row, :end] = torch.tensor(prompt + answer)
                    labels[row, len(prompt) : end] = torch.tensor(answer)
                yield ids, labels


def imitate(model, pairs, *, steps, seed, muon_lr, adamw_lr, decay=0.4, checkpoints=None, log_every=50):
    """Supervised training on the answers; linear decay to zero over the last `decay` of the steps."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    optimizers = [
        torch.optim.Muon(matrices, lr=muon_lr, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=adamw_lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]
    peaks = (muon_lr, adamw_lr)
    model.train()
    started, average = time.time(), None
    for step, (ids, labels) in zip(range(1, steps + 1), batches(pairs, seed), strict=False):
        factor = min(1.0, step / 50, (steps - step + 1) / (decay * steps) if decay else 1.0)
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = factor * peak
            optimizer.zero_grad()
        logits = model(input_ids=ids).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        average = loss.item() if average is None else 0.95 * average + 0.05 * loss.item()
        if step % log_every == 0:
            print(f"  step {step}/{steps}  loss {average:.4f}  {time.time() - started:.0f} s", flush=True)
        if checkpoints and step in checkpoints:
            checkpoints[step](model)
    return model.eval()
