"""One trainer, many objectives (report 4.3): configs free of torch, steps, checkpoints, metrics. `run.train` is the door."""
