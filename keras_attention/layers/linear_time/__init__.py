"""Layers in linear time, which sum over tokens instead of having weights of pairs."""
