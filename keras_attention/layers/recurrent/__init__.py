"""Recurrent decoders: a cell that attends, the loop over its steps, pointers."""
