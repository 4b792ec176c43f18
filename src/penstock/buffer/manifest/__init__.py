"""The queue of a buffer: an object on the store that is changed by compare-and-set."""
