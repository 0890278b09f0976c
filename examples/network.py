"""Whether data can be downloaded."""

import socket
import urllib.request


def check_answers(host):
    """Fails at once without a network; TensorFlow Datasets would retry for minutes."""
    if not urllib.request.getproxies():
        socket.create_connection((host, 80), timeout=10).close()
