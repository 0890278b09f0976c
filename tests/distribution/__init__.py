"""Tests on eight virtual devices, in a separate process: `tests/test_devices.py` starts it."""
