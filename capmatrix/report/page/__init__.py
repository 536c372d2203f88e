"""The support table as one self-contained, interactive HTML page."""
