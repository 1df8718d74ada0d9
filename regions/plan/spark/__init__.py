"""The planner on Spark. Only `regions.plan.spark_job` imports pyspark.

kernel.py     candidates of a bucket, choices of a shard
rows.py       rows in and out of the kernel; packed.py: thousands of rows as one Arrow stream
target.py     which Spark runs the job, with which settings; arguments.py: the job's command line
locate.py     block locality from Hadoop file systems
"""
