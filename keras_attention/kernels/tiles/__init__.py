"""Attention in tiles: its sizes, the choice of tiles, how arrays are cut, the passes over them."""
