"""Flyers that announce one event: texts in sixteen languages, design families, camera conditions, and the event as truth."""

from openafm.data.drawing.flyers.config import FlyersConfig

__all__ = ["FlyersConfig"]
