"""One trainer, many objectives (report 4.3): configs without torch, steps, checkpoints, metrics. Entry: `run.train`."""
