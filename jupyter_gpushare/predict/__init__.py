"""Know before it runs: what a model needs on each kind of GPU.

`dryrun` looks at a model without running it on a GPU, `features` are what it finds, `kinds` are the
makers' facts about GPUs, and `estimates` says memory, time and utilisation from both. The trained
models are plain numbers in a JSON file. Only the standard library is imported here; a framework is
in the subprocess that makes a dry run, and scikit-learn and torch in `training` only.
"""
