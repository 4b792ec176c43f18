"""The garbage collector: which data objects no entry names any more, and since when."""
