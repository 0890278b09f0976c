"""The core: what Keras keeps private, the parts of layers, slots in their order, listeners."""
