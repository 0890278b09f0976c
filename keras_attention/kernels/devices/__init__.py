"""Attention whose sequences are split over several devices."""
