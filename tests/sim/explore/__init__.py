"""Exhaustive walks over small models of the primary layer."""
