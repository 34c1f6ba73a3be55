"""What others ship instead of a compressed gradient."""

from hilosync.baselines.full_sync import FullSyncLearner, begin_learner

__all__ = ["FullSyncLearner", "begin_learner"]
