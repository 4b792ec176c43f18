"""Bytes that an enemy or a bad disk could have written, against everything that decodes. Run `python -m fuzz`.

Any bytes give a value or `CorruptData`: never another exception, a crash, a hang, or memory beyond the cap.
Every input follows from the seed and its number alone, so a finding can be made again.

```text
corpus     valid batches and manifests, and where their length fields are
mutations  an input from a seed and a number
targets    what is called, and what has to hold of a value that comes back
worker     the child: tries inputs one after the other under limits of time and memory
runner     the parent: starts workers, saves the input of every finding, adds up
```
"""
