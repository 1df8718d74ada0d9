#!/bin/sh
# Spark's own standalone daemons from the jars that pyspark ships: `spark.sh master` or `spark.sh worker spark://HOST:7077`.
set -eu
SPARK_HOME=$(python -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')
export SPARK_HOME PYSPARK_PYTHON=python
role=$1
shift
case $role in
  master) exec "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.master.Master --host "$(hostname)" --port 7077 --webui-port 8080 ;;
  worker) exec "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.worker.Worker --host "$(hostname)" --cores 2 --memory 2g "$@" ;;
  *) echo "spark.sh: master or worker, not $role" >&2; exit 2 ;;
esac
