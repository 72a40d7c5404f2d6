"""CIFAR-10 on one GPU: small batches, objectives, ESS targets, MI against accuracy, time to accuracy.

    python -m benchmarks.cifar10 --help

`plan` lists the runs, `run` makes those that are missing, `tables` writes results/cifar10 from what they left there.
"""
