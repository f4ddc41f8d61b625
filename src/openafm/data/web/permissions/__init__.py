"""What publishers allow: robots.txt, opt-outs, and the files of an origin that hold them."""
