"""The two modules that `export --to hf` writes beside weights of openafm's own architectures. openafm never imports them."""
