"""Compressors: a gradient into a payload within a byte budget, and back."""

from hilosync.compress.base import Compressor
from hilosync.compress.budget import UNLIMITED, budget_bytes
from hilosync.compress.corrected import CorrectedGradient, encode_corrected
from hilosync.compress.dense import Dense
from hilosync.compress.feedback import correct, default_decay, project_out, retain
from hilosync.compress.powersgd import PowerSGD
from hilosync.compress.registry import compressor_names, get_compressor
from hilosync.compress.spar import Spar
from hilosync.compress.spar_rd import SparRD
from hilosync.compress.topk import TopK
from hilosync.compress.warmup import Warmup

__all__ = [
    "UNLIMITED",
    "Compressor",
    "CorrectedGradient",
    "Dense",
    "PowerSGD",
    "Spar",
    "SparRD",
    "TopK",
    "Warmup",
    "budget_bytes",
    "compressor_names",
    "correct",
    "default_decay",
    "encode_corrected",
    "get_compressor",
    "project_out",
    "retain",
]
