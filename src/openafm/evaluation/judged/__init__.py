"""Judged evaluation: two models' answers to the same prompts, compared by a judge model (report 8)."""
