"""The ablation of the paper's Table 1 on any data set: python -m experiments.ablation."""
