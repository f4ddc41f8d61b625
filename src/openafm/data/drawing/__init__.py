"""Drawn images with exact truth: transcriptions, boxes, questions, captions (report 3.2.3, 3.2.4, 5.1)."""
