"""What others ship instead of a compressed gradient."""

from hilosync.baselines.full_sync import FullSyncLearner

__all__ = ["FullSyncLearner"]
