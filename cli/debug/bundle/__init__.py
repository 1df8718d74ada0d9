"""`rk debug bundle`: one file for the report of a fault, from all processes that still answer.

command.py   the command: asks all processes at once until a deadline, and writes the file
sources.py   the questions: health, admin ports, four-letter words, RPC, history, logs, configuration
hiding.py    removal of secrets, and of keys if wanted, from every text
"""
