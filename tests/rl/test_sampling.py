from __future__ import annotations

import numpy as np
import pytest
import torch

from hilosync.rl.noise import generator
from hilosync.rl.sampling import _draw, end_tokens, sample
from hilosync.rl.tokens import TokenBatch, completion_logits, pad_prompts

PROMPTS = [[3, 14, 4, 9], [3, 14, 4, 15, 13, 20, 5, 19, 4, 26, 6], [3, 19, 6]]


def draw(model, tokenizer, prompts=PROMPTS, samples=3, length=20, seed=0, **options):
    noise = None if seed is None else generator("test", seed)
    return sample(
        model,
        prompts,
        samples=samples,
        length=length,
        noise=noise,
        ends=end_tokens(model, tokenizer),
        padding=tokenizer.pad_token_id,
        **options,
    )


def test_the_noise_depends_on_its_key_alone():
    assert (generator("a", 1, 2).random(4) == generator("a", 1, 2).random(4)).all()
    assert (generator("a", 1, 2).random(4) != generator("a", 1, 3).random(4)).any()
    assert (generator("a", 1, 2).random(4) != generator("b", 1, 2).random(4)).any()
    assert (generator("a", 1, 12).random(4) != generator("a", 11, 2).random(4)).any()


def test_greedy_decoding_agrees_with_generate(model, tokenizer):
    found = draw(model, tokenizer, samples=1, seed=None)
    ids, mask = pad_prompts(PROMPTS, tokenizer.pad_token_id)
    expected = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=20, do_sample=False, pad_token_id=0)[
        :, ids.shape[1] :
    ]
    for row, tokens in enumerate(found.tokens):
        assert tokens == expected[row, : len(tokens)].tolist()
        assert len(tokens) == 20 or tokens[-1] == tokenizer.eos_token_id


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_behaviour_log_probabilities_agree_with_a_full_forward_pass(model, tokenizer, temperature):
    found = draw(model, tokenizer, temperature=temperature)
    lengths = {len(tokens) for tokens in found.tokens}
    assert len(lengths) > 1, "rows should end at different places for this test to mean anything"
    batch = TokenBatch.join([p for p in PROMPTS for _ in range(3)], found.tokens, tokenizer.pad_token_id)
    log_probs = torch.log_softmax(completion_logits(model, batch) / temperature, dim=-1)
    expected = log_probs.gather(2, batch.completions.unsqueeze(2)).squeeze(2)
    for row, values in enumerate(found.log_probs):
        assert values == pytest.approx(expected[row, : len(values)].tolist(), abs=2e-5)


def test_padding_does_not_change_a_rows_logits(model, tokenizer):
    together = TokenBatch.join(PROMPTS, [[20, 26], [20, 26, 15, 1], [20]], tokenizer.pad_token_id)
    logits = completion_logits(model, together)
    for row, (prompt, completion) in enumerate(zip(PROMPTS, [[20, 26], [20, 26, 15, 1], [20]], strict=True)):
        ids = torch.tensor([prompt + completion])
        alone = model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        torch.testing.assert_close(logits[row, : len(completion)], alone, atol=2e-5, rtol=1e-5)
    assert together.mask.sum(1).tolist() == [2, 4, 1]


def test_the_same_noise_gives_the_same_tokens_whatever_the_global_generator_did(model, tokenizer):
    torch.manual_seed(0)
    first = draw(model, tokenizer)
    torch.manual_seed(99)
    torch.rand(7)
    assert draw(model, tokenizer) == first
    assert draw(model, tokenizer, seed=1).tokens != first.tokens


def test_tokens_are_drawn_with_their_probabilities():
    logits = torch.tensor([0.0, 1.0, -torch.inf, 2.0])
    uniforms = torch.from_numpy(np.random.default_rng(0).random(20_000))
    tokens, log_probs = _draw(logits.expand(20_000, 4), uniforms, 1.0)
    shares = torch.bincount(tokens, minlength=4) / 20_000
    torch.testing.assert_close(shares, logits.softmax(0), atol=0.02, rtol=0)
    torch.testing.assert_close(log_probs, logits.double().log_softmax(0)[tokens])


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-53])
def test_extreme_noise_never_draws_an_impossible_token(uniform):
    logits = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf]])
    token, log_prob = _draw(logits, torch.tensor([uniform], dtype=torch.float64), 1.0)
    assert int(token) in (1, 2) and bool(log_prob.isfinite())
