"""Plots and the HTML report of LongNet-Bench: result directories in, one self-contained file out."""
