"""HiLo: train high, ship low."""
