"""Drawn images with exact truth: transcriptions, boxes, questions and captions of what was drawn (report 3.2.3, 3.2.4, 5.1)."""
