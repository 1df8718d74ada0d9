"""Bulk plans on Spark as it is really run: clusters of separate processes, `spark-submit`, Spark Connect."""
