"""The evaluation harness (report 8): tasks, answers of any model, scores with errors, stored samples."""
