"""Makes one small step of a run, so that the kernels of replay and codec are compiled and cached once, at set-up."""

from __future__ import annotations

import torch

from hilosync.arithmetic.guards import check_arithmetic
from hilosync.compress import SparRD, correct, encode_corrected, retain
from hilosync.optim import AdamW, init_state
from hilosync.plan import AdapterPlan, Block


def main() -> None:
    """Compiles."""
    check_arithmetic()
    plan = AdapterPlan((Block("lora_A", 64, 128, fan_in=128), Block("lora_B", 128, 64)))
    generator = torch.Generator().manual_seed(0)
    gradient, residual = torch.randn(plan.size, generator=generator), torch.zeros(plan.size)
    compressor, optimizer = SparRD(), AdamW(lr=1e-3)
    corrected = correct(plan, gradient, residual)
    payload, _ = encode_corrected(compressor, plan, compressor.init(plan), corrected, 2000)
    decoded = compressor.decode(plan, payload)
    retain(plan, corrected, decoded)
    state = init_state(plan, optimizer, torch.zeros(plan.size))
    optimizer.step(plan, state, decoded, optimizer.scalars(1, None))


if __name__ == "__main__":
    main()
