"""Tests on eight virtual devices, in a process of their own: `tests/test_devices.py` starts it."""
