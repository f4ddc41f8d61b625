"""Scenes of shapes and emoji: captions in levels, grounded ones, and questions about counts, places and absent things."""

from openafm.data.drawing.scenes.config import ScenesConfig

__all__ = ["ScenesConfig"]
