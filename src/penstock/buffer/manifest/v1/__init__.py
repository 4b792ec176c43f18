"""Version 1 of the manifest, which is OpenData's: one object with every entry in it."""
