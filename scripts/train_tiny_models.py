"""Makes the tiny Knights-and-Knaves teacher and student that the demo and the tests use.

    OMP_NUM_THREADS=1 python scripts/train_tiny_models.py

Both are Qwen3 models of 860,288 parameters (1.7 MB in bf16), trained by imitation on one thread, in
about a quarter of an hour. The teacher imitates right answers. The student leaves the teacher's run
at step 2000 and imitates, for 150 more steps, somebody who knows the procedure but tosses a coin for
every check of a statement with `or`, `implies` or `iff`, and errs in every tenth check of the others.
What a run on it measures is therefore mostly the repair of an ability that was damaged on purpose; a
student that had merely been trained less learned much more slowly.
"""

from __future__ import annotations

import argparse
import copy
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from hilosync.rl.evaluation import evaluate
from hilosync.rl.policy import load_model, load_tokenizer
from hilosync.rl.tasks.compact import CompactKnights, compact_tokenizer, enumeration
from hilosync.rl.tasks.knights import Problem, Statement

TASK = CompactKnights()
TOKENIZER = compact_tokenizer()
BATCH = 32
WIDTH = 112  # tokens of a packed row; no sequence is longer

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


def demonstrations(first: int, count: int, write: Callable[[Problem], str] = enumeration) -> list[Pair]:
    """Prompt and answer tokens of problems `first` …, which are never held-out ones."""
    pairs = []
    for index in range(first, first + count):
        answer = f"{write(TASK.source.problem(index))} {TOKENIZER.eos_token}"
        pairs.append((TOKENIZER.encode(TASK.prompt(index)), TOKENIZER.encode(answer)))
    return pairs


def connectives(statement: Statement) -> set[str]:
    return {statement[0]}.union(*(connectives(part) for part in statement[1:] if isinstance(part, tuple)))


def clumsy_writer(seed: int) -> Callable[[Problem], str]:
    """A writer who guesses about `or`, `implies` and `iff`, and errs in a tenth of the other checks."""
    coin = random.Random(seed)

    def write(problem: Problem) -> str:
        errors = [0.5 if connectives(s) & {"or", "->", "<=>"} else 0.1 for s in problem.statements]
        return enumeration(problem, lambda person, roles, right: right ^ (coin.random() < errors[person]))

    return write


def pack(pairs: list[Pair]) -> tuple[torch.Tensor, ...]:
    """Rows of several sequences each: ids, labels, positions of shape (rows, WIDTH), and who may see whom.

    Padding every sequence to the longest would waste a third of the work, and batches of like length
    learn more slowly.
    """
    rows: list[list[Pair]] = []
    room: list[int] = []
    for pair in sorted(pairs, key=lambda pair: -len(pair[0]) - len(pair[1])):
        size = len(pair[0]) + len(pair[1])
        row = next((row for row, left in enumerate(room) if left >= size), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(WIDTH)
        rows[row].append(pair)
        room[row] -= size
    ids = torch.full((len(rows), WIDTH), TOKENIZER.pad_token_id)
    labels = torch.full((len(rows), WIDTH), -100)
    positions = torch.zeros((len(rows), WIDTH), dtype=torch.int64)
    owner = torch.zeros((len(rows), WIDTH), dtype=torch.int64)
    for row, members in enumerate(rows):
        start = 0
        for number, (prompt, answer) in enumerate(members, 1):
            stop = start + len(prompt) + len(answer)
            ids[row, start:stop] = torch.tensor(prompt + answer)
            labels[row, start + len(prompt) : stop] = torch.tensor(answer)
            positions[row, start:stop] = torch.arange(stop - start)
            owner[row, start:stop] = number
            start = stop
    visible = (owner[:, :, None] == owner[:, None, :]).tril()
    return ids, labels, positions, visible[:, None]


def batches(pairs: list[Pair], seed: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """Endless shuffled batches."""
    shuffle = random.Random(seed)
    while True:
        order = shuffle.sample(pairs, len(pairs))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            yield pack(order[start : start + BATCH])


def imitate(
    model: Qwen3ForCausalLM,
    pairs: list[Pair],
    *,
    steps: int,
    seed: int,
    learning_rate: float,
    decay: float,
    keep_at: int = 0,
) -> tuple[Qwen3ForCausalLM, Qwen3ForCausalLM | None]:
    """Supervised training on the answers; the learning rate falls to zero over the last `decay` of the steps.

    Returns:
        The trained model, and a copy of it as it was after step `keep_at`.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.1, fused=True)
    model.train()
    started, average, kept = time.time(), 0.0, None
    for step, (ids, labels, positions, visible) in zip(range(1, steps + 1), batches(pairs, seed), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(1.0, step / 100, (steps - step + 1) / (decay * steps))
        logits = model(input_ids=ids, position_ids=positions, attention_mask=visible).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average = loss.item() if step == 1 else 0.95 * average + 0.05 * loss.item()
        if step % 100 == 0:
            print(f"  step {step}/{steps}  loss {average:.4f}  {time.time() - started:.0f} s", flush=True)
        if step == keep_at:
            kept = copy.deepcopy(model)
    return model, kept


def save(model: Qwen3ForCausalLM, folder: Path) -> None:
    """Stores bf16 weights and the tokenizer, and says how good what was stored is."""
    model.eval().to(torch.bfloat16).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    found = evaluate(load_model(str(folder)), load_tokenizer(str(folder)), TASK, problems=TASK.held_out)
    print(f"{folder.name}: pass@1 {found.pass_at_1:.3f}, pass@4 {found.pass_at_4:.3f} on {found.problems} problems")


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the tiny teacher and student.")
    parser.add_argument("--out", type=Path, default=Path("src/hilosync/rl/models"))
    out: Path = parser.parse_args().out
    torch.set_num_threads(1)

    print("seeds: weights 0, teacher's batches 0, coins 7, student's batches 3")
    pairs = demonstrations(TASK.held_out, 24_000)
    teacher, undecayed = imitate(new_model(0), pairs, steps=3000, seed=0, learning_rate=1.5e-3, decay=0.4, keep_at=2000)
    save(teacher, out / "tiny-kk-teacher")
    pairs = demonstrations(500_000, 4800, clumsy_writer(7))
    student, _ = imitate(undecayed, pairs, steps=150, seed=3, learning_rate=1e-3, decay=0.9)
    save(student, out / "tiny-kk-student")


if __name__ == "__main__":
    main()
