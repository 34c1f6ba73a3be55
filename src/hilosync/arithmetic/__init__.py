"""Bit-exact arithmetic: decode, optimizer transitions, digests."""

from hilosync.arithmetic.decode import materialize
from hilosync.arithmetic.gradient import DecodedGradient, DenseBlock, LowRankBlock
from hilosync.arithmetic.initial import initial_parameters
from hilosync.arithmetic.state import PolicyState

__all__ = [
    "DecodedGradient",
    "DenseBlock",
    "LowRankBlock",
    "PolicyState",
    "initial_parameters",
    "materialize",
]
