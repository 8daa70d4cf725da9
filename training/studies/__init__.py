"""Studies: comparisons of recipes with each other and with other classifiers."""
