"""The region layer's pure half: records, legal transitions, decisions and plans."""
